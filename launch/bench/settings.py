"""What one benchmark is: checked once, and handed to the process of the host that runs it as a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from april.errors import UsageError

MODES = ("sync", "upstream-partial", "april")
VARIABLE = "APRIL_BENCH"
"""Names the file in the environment of the run; ``april train`` passes ``APRIL_*`` on to the workers."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One benchmark. Lengths are tokens.

    batch, samples
        Groups that a round trains, and responses of a group.
    over_sampling
        Groups that a round of the partial modes starts, per group that it trains.
    concurrency
        Responses that the server decodes at once; more wait in its queue.
    rounds, warm_up
        Rounds of each mode that are measured, and rounds before them that are not.
    max_len
        What the longest response of the distribution is scaled to.
    cap
        april's staleness cap in policy versions; the host's partial rollouts know none.
    """

    modes: tuple[str, ...] = MODES
    batch: int = 4
    samples: int = 4
    over_sampling: float = 2.0
    concurrency: int = 6
    rounds: int = 10
    warm_up: int = 1
    max_len: int = 1024
    cap: int = 5
    seed: int = 0
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        unknown = [mode for mode in self.modes if mode not in MODES]
        if unknown or not self.modes or len(set(self.modes)) != len(self.modes):
            raise UsageError(f"--modes {','.join(self.modes)}: use {', '.join(MODES)}, each at most once")
        for flag, value, least in (
            ("--batch", self.batch, 1),
            ("--samples", self.samples, 1),
            ("--over-sampling", self.over_sampling, 1),
            ("--concurrency", self.concurrency, 2),
            ("--rounds", self.rounds, 1),
            ("--warm-up", self.warm_up, 0),
            ("--max-len", self.max_len, 8),
            ("--cap", self.cap, 0),
            ("--seed", self.seed, 0),
        ):
            if not least <= value < float("inf"):
                raise UsageError(f"{flag} {value}: at least {least}")

    @property
    def started(self) -> int:
        """Groups that a round of the partial modes starts."""
        return max(self.batch, round(self.over_sampling * self.batch))

    @property
    def cycles(self) -> int:
        """Rounds of each mode, warm-up included."""
        return self.warm_up + self.rounds

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self)))


def read(path: Path) -> Settings:
    """Inverse of ``write``."""
    body: dict[str, Any] = json.loads(path.read_text())
    known = {field.name for field in fields(Settings)}
    assert set(body) == known, set(body) ^ known
    return Settings(**{**body, "modes": tuple(body["modes"]), "lengths": tuple(body["lengths"])})


def of_this_run(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings that the environment of this run names."""
    return read(Path(environment[VARIABLE]))
