"""Steps of a set-up, each with a stamp that is written last and atomically: a killed run is taken up where it stood."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .progress import Progress


@dataclass(frozen=True)
class Step:
    """One step. ``key`` names its inputs; ``holds`` looks at reality; ``run`` does it and returns a summary for the
    user."""

    name: str
    title: str
    key: str
    holds: Callable[[], bool]
    run: Callable[[], str]
    disk: float = 0.0
    """GiB that it writes, at most."""


class Stamps:
    """Which steps are done, as files in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def done(self, step: Step) -> bool:
        """Whether ``step`` ended with its present inputs."""
        try:
            return (self.folder / step.name).read_text(encoding="utf-8") == step.key
        except FileNotFoundError:
            return False

    def write(self, step: Step) -> None:
        """Mark ``step`` as done: a whole file appears, or none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = self.folder / f".{step.name}.{os.getpid()}"
        with scratch.open("w", encoding="utf-8") as text:
            text.write(step.key)
            text.flush()
            os.fsync(text.fileno())
        os.replace(scratch, self.folder / step.name)

    def drop(self, step: Step) -> None:
        """Mark ``step`` as not done, before it starts anew."""
        with contextlib.suppress(FileNotFoundError):
            (self.folder / step.name).unlink()


def pending(steps: list[Step], stamps: Stamps) -> list[Step]:
    """The steps that are not done, or whose result is not there any more."""
    return [step for step in steps if not (stamps.done(step) and step.holds())]


def carry_out(steps: list[Step], stamps: Stamps, progress: Progress) -> int:
    """Run those of ``steps`` that are pending when their turn comes; return how many ran."""
    ran = 0
    for number, step in enumerate(steps, 1):
        if stamps.done(step) and step.holds():
            continue
        progress.begin(number, step.title)
        stamps.drop(step)
        summary = step.run()
        stamps.write(step)
        progress.end(summary)
        ran += 1
    return ran
