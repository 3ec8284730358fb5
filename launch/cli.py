"""The command ``april``: finds the subcommand and imports only that, so that help is quick."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable

from april.errors import AprilError

COMMANDS = {
    "train": ("april.launch.train.command", "train with the overlay: april train [our flags] [slime flags]"),
    "launch": ("april.launch.run.command", "train by the name of a preset, here or as a cluster job: MODEL-DATA"),
    "presets": ("april.launch.presets.main", "what april launch can be given: list, show"),
    "quickstart": ("april.launch.quickstart.main", "see it learn on a CPU: a small policy, with and without april"),
    "bench": ("april.launch.bench.main", "measure here: rollouts of the host and of april, on one real server"),
    "patch": ("april.launch.patch.main", "what is changed upstream, and whether it fits a version: list, check, diff"),
    "doctor": ("april.launch.doctor.main", "check this machine: versions, patches, devices; each fault with a remedy"),
    "buffer": ("april.launch.buffer.main", "look at a buffer of partials: show, verify, export to parquet"),
    "calibrate": ("april.launch.calibrate.main", "when speculation pays: fit, check, predict, explain"),
    "verify-sd": ("april.launch.verify.main", "show that speculation changes nothing but the speed"),
    "drafter": ("april.launch.drafter.main", "what each layer of a model drafts with, its bytes and error: show"),
    "memory": ("april.launch.memory.main", "pause and resume of memory by tag: selftest"),
}


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; returns its exit code (2: usage, 1: failure)."""
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    name, rest = words[0], words[1:]
    try:
        return _command(name)(rest)
    except KeyboardInterrupt:
        print("april: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has had enough; nothing may be written when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except AprilError as error:
        print(f"april: error: {error}", file=sys.stderr)
        return error.exit_code


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(["usage: april COMMAND ...", "", "commands:", *lines, "", "april COMMAND --help says more."])


def _command(name: str) -> Callable[[list[str]], int]:
    from april.errors import UsageError

    if name not in COMMANDS:
        raise UsageError(f"unknown command {name!r}: use {', '.join(COMMANDS)}")
    run: Callable[[list[str]], int] = importlib.import_module(COMMANDS[name][0]).run
    return run


if __name__ == "__main__":
    sys.exit(main())
