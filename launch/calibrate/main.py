"""``april calibrate``: the latency model that decides when to speculate, fitted, checked and asked.

Parses only: numpy, scipy and matplotlib are imported by the subcommand that needs them, so that --help is quick.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from april.errors import UsageError
from april.launch.arguments import UsageParser


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = UsageParser(
        prog="april calibrate",
        allow_abbrev=False,
        description="Fit the times of target decode, drafter decode and verify to a measured sweep, and ask the fit "
        "where speculation pays. Formulas, symbols and figures: docs/calibrate.md.",
    )
    subs = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    fit = subs.add_parser("fit", help="fit a sweep and write a calibration", allow_abbrev=False)
    crossval = subs.add_parser("crossval", help="errors on rows that a fit has not seen", allow_abbrev=False)
    for sub in (fit, crossval):
        sub.add_argument("--sweep", type=Path, required=True, metavar="CSV", help="measured times, published columns")
        sub.add_argument("--constants", type=Path, required=True, metavar="JSON", help="bytes and FLOP of the model")
        sub.add_argument("--gemm", type=Path, metavar="JSON", help="measured GEMM throughput of the device")
        sub.add_argument("--form", choices=("best", "paper"), default="best", help="our form (default) or the paper's")
    fit.add_argument("--device", default="", help="name of the device; default: that in --gemm")
    fit.add_argument("--out", type=Path, required=True, metavar="JSON", help="the calibration, replaced if it exists")
    validate = subs.add_parser("validate", help="errors of a calibration on a sweep", allow_abbrev=False)
    validate.add_argument("--config", type=Path, required=True, metavar="JSON", help="a calibration, ours or published")
    validate.add_argument("--sweep", type=Path, required=True, metavar="CSV", help="measured times")
    predict = subs.add_parser("predict", help="times and speedup at one point", allow_abbrev=False)
    predict.add_argument("--config", type=Path, required=True, metavar="JSON", help="a calibration")
    predict.add_argument("--batch", type=_positive, required=True, help="running requests")
    predict.add_argument("--seq", type=_positive, required=True, help="their mean context, tokens")
    predict.add_argument("--gamma", type=_whole, required=True, help="draft tokens in a cycle")
    plot = subs.add_parser("plot", help="a picture of a calibration", allow_abbrev=False)
    plot.add_argument("--config", type=Path, required=True, metavar="JSON", help="a calibration")
    plot.add_argument("--sweep", type=Path, metavar="CSV", help="measured times to compare with")
    plot.add_argument("--out", type=Path, required=True, metavar="PNG", help="the picture")
    simulate = subs.add_parser("simulate", help="toggles and draft lengths on made-up rollouts", allow_abbrev=False)
    simulate.add_argument("--config", type=Path, required=True, metavar="JSON", help="what the rules know")
    simulate.add_argument("--truth", type=Path, metavar="JSON", help="what the engine does; default: the same")
    explain = subs.add_parser("explain", help="why speculation was on or off at a moment", allow_abbrev=False)
    explain.add_argument("log", type=Path, metavar="LOG", help="a decision log, JSON lines")
    explain.add_argument("--at", required=True, metavar="T", help="seconds as in the log, or an ISO 8601 time")
    for sub in (crossval, validate, predict, plot, simulate):
        sub.add_argument("--l-accept", type=_positive, metavar="L", help="tokens gained per cycle; default: gamma")
    for sub in (crossval, validate, predict, simulate, explain):
        sub.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return made


def run(argv: list[str]) -> int:
    """Returns the exit code.

    Raises:
        UsageError: for a wrong flag, or a file that cannot be used; nothing is written then.
    """
    given = parser().parse_args(argv)
    # The matrices are small: threads of the linear algebra would wait for each other, longest on a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if given.command in ("fit", "crossval"):
        from . import fitting

        print(fitting.fit(given) if given.command == "fit" else fitting.crossval(given))
    else:
        from . import asking

        commands = {
            "validate": asking.validate,
            "predict": asking.predict,
            "plot": asking.plot,
            "simulate": asking.simulate,
            "explain": asking.explain,
        }
        print(commands[given.command](given))
    return 0


def output_path(path: Path) -> Path:
    """A file that can be written, as far as can be told before anything is computed."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--out {path}: a file in a folder that exists is expected")
    return path


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return value


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number >= 1")
    return int(text)
