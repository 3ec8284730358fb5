"""A sweep from anything that can be asked to run a step: the grid, the repeats, the rows in the published columns.

Knows no engine: a `Step` runs one pass of a mode over B requests with S tokens of context and returns its seconds.
Prompts should differ between requests, or the sweep measures the reading of a shared prefix.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specrollout.roofline.sweep import COLUMNS, DRAFTER, TARGET, VERIFY

Step = Callable[[str, int, int, int], float]  # mode, batch, context, gamma -> seconds


@dataclass(frozen=True, slots=True)
class Grid:
    """The points of a sweep, and how often each is measured after its warm-up."""

    batches: Sequence[int]
    contexts: Sequence[int]
    gammas: Sequence[int]
    warmup: int = 3
    repeats: int = 15

    def points(self) -> Iterator[tuple[str, int, int, int]]:
        """(mode, B, S, gamma), in an order that changes one thing at a time."""
        for batch in self.batches:
            for context in self.contexts:
                yield TARGET, batch, context, 0
                for gamma in self.gammas:
                    yield DRAFTER, batch, context, gamma
                    yield VERIFY, batch, context, gamma


def measure(step: Step, grid: Grid, model: str) -> list[dict[str, str | int | float]]:
    """Run the grid; one row for each point. Warm-up steps are not counted."""
    assert grid.repeats >= 2, "a standard deviation needs two"
    rows: list[dict[str, str | int | float]] = []
    for mode, batch, context, gamma in grid.points():
        for _ in range(grid.warmup):
            step(mode, batch, context, gamma)
        times = [step(mode, batch, context, gamma) for _ in range(grid.repeats)]
        rows.append(row(model, mode, batch, context, gamma, times))
    return rows


def row(
    model: str, mode: str, batch: int, context: int, gamma: int, seconds: Sequence[float]
) -> dict[str, str | int | float]:
    """A row of a sweep from the seconds of at least two steps."""
    times = [1e3 * value for value in seconds]
    statistic: dict[str, str | int | float] = {
        "mean_ms": statistics.mean(times),
        "median_ms": statistics.median(times),
        "std_ms": statistics.stdev(times),
        "min_ms": min(times),
        "max_ms": max(times),
    }
    point: dict[str, str | int | float] = {"model": model, "batch": batch, "seq": context, "gamma": gamma, "mode": mode}
    return {**point, **statistic, "n_samples": len(times)}


def write_sweep(rows: list[dict[str, str | int | float]], path: Path) -> None:
    """Write rows as CSV, whole or not at all."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    temporary.replace(path)
