"""``april calibrate``: the latency model that decides when to speculate, fitted, checked and asked.

Parses only: numpy, scipy and matplotlib are imported by the subcommand that needs them, so that --help is quick.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

from april.errors import UsageError
from april.launch.arguments import UsageParser
from specrollout.settings import DRAFTERS, LONGEST


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
    simulate.add_argument(
        "--acceptance", type=Path, nargs="+", metavar="JSON", help="accepted drafts that april bench crossing recorded"
    )
    simulate.add_argument("--truth", type=Path, metavar="JSON", help="what the engine does; default: the same")
    explain = subs.add_parser("explain", help="why speculation was on or off at a moment", allow_abbrev=False)
    explain.add_argument("log", type=Path, metavar="LOG", help="a decision log, JSON lines")
    explain.add_argument("--at", required=True, metavar="T", help="seconds as in the log, or an ISO 8601 time")
    _add_measure(subs)
    for sub in (crossval, validate, predict, plot, simulate):
        sub.add_argument("--l-accept", type=_positive, metavar="L", help="tokens gained per cycle; default: gamma")
    for sub in (crossval, validate, predict, simulate, explain):
        sub.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return made


def _add_measure(subs: Any) -> None:
    measure = subs.add_parser("measure", help="a sweep from a real server on this machine", allow_abbrev=False)
    measure.add_argument("--model", default="smollm2", help="smollm2, synthetic, or a model folder (default: smollm2)")
    measure.add_argument("--out", type=Path, required=True, metavar="CSV", help="the sweep")
    measure.add_argument("--constants", type=Path, required=True, metavar="JSON", help="bytes and FLOP of the model")
    measure.add_argument("--batches", type=_wholes, default=[1, 2, 4, 8, 16], metavar="B,...", help="(1,2,4,8,16)")
    measure.add_argument("--contexts", type=_wholes, default=[64, 256, 1024], metavar="S,...", help="(64,256,1024)")
    measure.add_argument("--gammas", type=_wholes, default=[1, 3, 5, 7], metavar="G,...", help="(1,3,5,7)")
    measure.add_argument("--repeats", type=_whole, default=15, metavar="N", help="steps at each point (15)")
    measure.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="(bfloat16)")
    measure.add_argument("--drafter", default="w4", choices=DRAFTERS, help="(w4)")
    measure.add_argument("--cache-dir", metavar="DIR", help="where models are kept (default: ~/.cache/april)")


def run(argv: list[str]) -> int:
    """Returns the exit code.

    Raises:
        UsageError: for a wrong flag, or a file that cannot be used; nothing is written then.
    """
    given = parser().parse_args(argv)
    # The matrices are small: threads of the linear algebra would wait for each other, longest on a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if given.command == "measure":
        print(_measure(given))
    elif given.command in ("fit", "crossval"):
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


def _measure(given: argparse.Namespace) -> str:
    for path in (given.out, given.constants):
        output_path(path)
    if given.repeats < 2:
        raise UsageError("--repeats: at least 2, for a standard deviation")
    if max(given.gammas) > LONGEST:
        raise UsageError(f"--gammas: at most {LONGEST}")
    from . import measuring

    grid = measuring.Grid(given.batches, given.contexts, given.gammas, given.repeats)
    return measuring.measure(given, grid, model_folder(given.model, given.cache_dir))


def model_folder(name: str, cache_dir: str | None) -> Path:
    """The folder of a model by name, made where it is missing, or the folder itself.

    Raises:
        UsageError: where there is none.
    """
    if name in ("smollm2", "synthetic"):
        from april.launch.bench.speculation_command import model

        return model(name, cache_dir)
    if not (Path(name) / "config.json").is_file():
        raise UsageError(f"--model {name}: smollm2, synthetic, or a folder with a config.json is expected")
    return Path(name)


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


def _wholes(text: str) -> list[int]:
    return [_whole(part) for part in text.split(",")]


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number >= 1")
    return int(text)
