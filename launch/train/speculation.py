"""Speculation in a run: our flags become the engines' algorithm and a setting in their environment."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from april.errors import AprilError, UsageError
from april.hosts import Host
from april.telemetry import events
from specrollout import settings
from specrollout.settings import Settings

DECISIONS = "decisions.jsonl"
"""In the run directory; ``april calibrate explain`` reads it."""
ALGORITHM = "--sglang-speculative-algorithm"


def add_arguments(parser: ArgumentParser) -> None:
    """``--specrollout`` and its options."""
    settings.add_arguments(parser)


def chosen(ours: Namespace, host: Host, theirs: list[str]) -> Settings | None:
    """What the engines get; None without speculation.

    Raises:
        UsageError: for a value out of range, or flags that contradict it.
    """
    made = settings.from_args(ours)
    if made is None:
        return None
    for flag in theirs:
        name = flag.split("=", 1)[0]
        if name.startswith("--sglang-speculative-"):
            raise UsageError(f"--specrollout on and {name}: the engines speculate in one way; drop one of them")
    if made.calibration is not None and not Path(made.calibration).is_file():
        raise UsageError(f"--specrollout-calibration {made.calibration}: there is no such file")
    return made


def flags(made: Settings | None) -> list[str]:
    """For the host."""
    return [] if made is None else [ALGORITHM, settings.ALGORITHM]


def environment(made: Settings | None, run_dir: Path | None) -> dict[str, str]:
    """For the engines. The fit of step times is small: more than one thread only costs it, and the decoding, time."""
    if made is None:
        return {settings.VARIABLE: ""}
    decisions = None if run_dir is None else str(run_dir / DECISIONS)
    return {settings.VARIABLE: replace(made, decisions=decisions).to_json(), "OPENBLAS_NUM_THREADS": "1"}


def verify(run_dir: Path) -> None:
    """Every engine that is up can speculate, where the run asked for it.

    Raises:
        AprilError: with an engine's reason.
    """
    path = run_dir / events.FILE
    for event in events.read(path, "speculation") if path.is_file() else []:
        if event["refusal"]:
            raise AprilError(
                f"--specrollout on: engine {event['engine']} cannot speculate: {event['refusal']}; "
                "change that, or run with --specrollout off"
            )
