"""``april quickstart``: a small policy learns on this machine, with and without active partial rollouts."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import Any

from april.errors import UsageError
from april.hosts.resolve import resolve
from april.launch import folders
from april.launch.arguments import UsageParser
from april.launch.quickstart.recipe import MODES, RECIPES


def parser() -> argparse.ArgumentParser:
    """The flags of the quick start."""
    made = UsageParser(prog="april quickstart", allow_abbrev=False, description=__doc__)
    made.add_argument(
        "--model", default="tiny", help=f"{' or '.join(RECIPES)} (default: tiny, made here in about a minute)"
    )
    made.add_argument("--host", default="auto", help="auto, slime or miles")
    made.add_argument("--slime-dir", metavar="DIR", help="slime's source tree; default: $SLIME_DIR")
    made.add_argument("--steps", type=int, metavar="N", help="training steps of each mode (default: the recipe's)")
    made.add_argument("--modes", default=",".join(MODES), help=f"which, in this order (default: {','.join(MODES)})")
    made.add_argument("--seed", type=int, default=0, help="of the prompts, the sampling and the training")
    made.add_argument("--out", metavar="DIR", help="where the runs and pictures go (default: runs/quickstart-<time>)")
    made.add_argument("--cache-dir", metavar="DIR", help="where models are kept (default: ~/.cache/april)")
    made.add_argument("--json", action="store_true", help="print the figures as one JSON object on the last line")
    return made


def run(argv: list[str]) -> int:
    """The whole quick start; returns the exit code (128 + signal number after a signal).

    Raises:
        UsageError: for flags or folders that make no sense; AprilError when a run fails.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _quickstart(argv)
    except KeyboardInterrupt as signalled:
        print("april: interrupted; everything that the quick start started has ended", file=sys.stderr)
        return 128 + (signalled.args[0] if signalled.args else signal.SIGINT)


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt(signum)


def _quickstart(argv: list[str]) -> int:
    begun = time.monotonic()
    flags = parser().parse_args(argv)
    modes = flags.modes.split(",")
    _check(flags, modes)
    host = resolve(flags.host, flags.slime_dir, os.environ)
    out = folders.empty("--out", flags.out, f"runs/quickstart-{time.strftime('%Y%m%d-%H%M%S')}")

    from april.launch.quickstart import pictures, prepare, report, runs

    recipe = RECIPES[flags.model]
    steps = flags.steps or recipe.steps
    inputs = prepare.inputs(flags.model, recipe, flags.seed, flags.cache_dir, out)
    results = {}
    for mode in modes:
        job = runs.Job(mode, host.name, flags.slime_dir, out / mode, recipe, inputs, steps, flags.seed)
        results[mode] = report.summarize(runs.train(job), mode, steps)
    total = time.monotonic() - begun
    print(report.table(results, total), file=sys.stderr)
    for path in pictures.draw(results, out):
        print(f"april: {path}", file=sys.stderr)
    body = report.document(results, host.name, flags.model, steps, total)
    (out / "report.json").write_text(json.dumps(body, indent=1) + "\n")
    if flags.json:
        print(json.dumps(body))
    return 0


def _check(flags: argparse.Namespace, modes: list[str]) -> None:
    if flags.model not in RECIPES:
        raise UsageError(f"unknown model {flags.model!r}: use {' or '.join(RECIPES)}")
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or len(set(modes)) != len(modes):
        raise UsageError(f"--modes {flags.modes}: use {', '.join(MODES)}, each at most once")
    if flags.steps is not None and flags.steps < 1:
        raise UsageError(f"--steps {flags.steps}: at least 1")
    if flags.seed < 0:
        raise UsageError(f"--seed {flags.seed}: 0 or more")
