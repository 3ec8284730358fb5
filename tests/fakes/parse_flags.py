"""Ask a real host's parsers whether they take the flags of runs; prints what they refuse as JSON.

Usage: parse_flags.py FILE, with the environment of a run. The file has ``pairs`` (one flag with its values each, which
is checked by the parsers' own declarations) and ``runs`` (name -> all flags, parsed and validated as april train
does it). A process of its own: importing the parsers takes long.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from april.hosts.resolve import from_environment
from april.launch.train import flags
from april.patches import boot

FAULTS = (["--no-such-flag"], ["--rollout-batch-size", "many"], ["--advantage-estimator", "guessing"])


def parse(host: Any, argv: list[str]) -> Namespace:
    sys.argv = ["train.py", *argv]
    return flags.parse(host, argv)


def declared(host: Any, argv: list[str]) -> dict[str, argparse.Action]:
    """Every flag that any parser of a run declares, with its action."""
    container: Any = argparse._ActionsContainer
    original = container._add_action
    found: dict[str, argparse.Action] = {}

    def add_action(self: Any, action: argparse.Action) -> Any:
        made = original(self, action)
        found.update(dict.fromkeys(action.option_strings, made))
        return made

    container._add_action = add_action
    try:
        parse(host, argv)
    finally:
        container._add_action = original
    return found


def wrong(words: list[str], actions: dict[str, argparse.Action]) -> str | None:
    """What the parsers say of one flag and its values."""
    action = actions.get(words[0])
    if action is None:
        return "unknown"
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser._add_action(action)
    try:
        parser.parse_args(words)
    except (argparse.ArgumentError, SystemExit) as error:
        return str(error) or "refused"
    return None


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    boot.install_driver()
    # Megatron's check asks which generation the GPU is of; here is none.
    torch.cuda.get_device_properties = lambda *args, **keywords: Namespace(major=9, minor=0)  # type: ignore[assignment]
    host = from_environment(os.environ)
    actions = declared(host, next(iter(asked["runs"].values())))
    pairs = {" ".join(words): said for words in asked["pairs"] if (said := wrong(words, actions))}
    refused: dict[str, str] = {}
    for name, argv in asked["runs"].items():
        try:
            parse(host, argv)
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {error}"
    found = all(wrong(words, actions) for words in FAULTS)
    print(json.dumps({"pairs": pairs, "refused": refused, "parsed": len(asked["runs"]), "faults_found": found}))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
