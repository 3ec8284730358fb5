"""``april calibrate measure``: a sweep of step times from a real server that runs here, in the published columns.

Each point is a burst of B prompts of S tokens; the engine records its steps, and those with all B requests running are
the samples. Prompts differ, so that no prefix is shared. The constants of the model come from the engine as well.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.errors import AprilError
from april.launch.engine.server import Engine, running
from specrollout.roofline.measure import row, write_sweep
from specrollout.roofline.sweep import DRAFTER, TARGET, VERIFY
from specrollout.settings import Settings

WARM_UP = 3
VOCABULARY = 30_000


@dataclass(frozen=True, slots=True)
class Grid:
    """Running requests, tokens of context, draft lengths, and steps at each point."""

    batches: list[int]
    contexts: list[int]
    gammas: list[int]
    repeats: int


def measure(given: argparse.Namespace, grid: Grid, model: Path) -> str:
    """Writes the sweep and the constants; returns what to print.

    Raises:
        AprilError: where the server fails, or cannot speculate.
    """
    slots = max(grid.batches) * (max(grid.contexts) + (max(grid.gammas) + 1) * (grid.repeats + WARM_UP + 4)) + 1024
    flags = ("--dtype", given.dtype, "--max-total-tokens", str(slots), "--disable-radix-cache")
    settings = Settings(drafter=given.drafter, toggle="off", gamma=1, longest=max(grid.gammas))
    rows: list[dict[str, str | int | float]] = []
    with running(model, *flags, speculation=settings) as engine:
        state = engine.speculation()
        if state["refusal"]:
            raise AprilError(f"the engine cannot speculate: {state['refusal']}")
        for batch in grid.batches:
            for context in grid.contexts:
                found = list(_point(engine, grid, batch, context, state["constants"]["model"]))
                rows += found
                print(f"april: B {batch}, S {context}: {_line(found)}", file=sys.stderr)
    write_sweep(rows, given.out)
    given.constants.write_text(json.dumps(state["constants"], indent=1) + "\n")
    return f"{len(rows)} rows in {given.out}, constants in {given.constants}"


def _point(engine: Engine, grid: Grid, batch: int, context: int, model: str) -> Iterator[dict[str, str | int | float]]:
    engine.force(mode="off", record=True)
    times = _burst(engine, batch, context, 1, grid.repeats, 0)
    yield row(model, TARGET, batch, context, 0, times[0])
    for gamma in grid.gammas:
        engine.force(mode="on", gamma=gamma)
        drafts, verifies = _burst(engine, batch, context, gamma + 1, grid.repeats, gamma)
        yield row(model, DRAFTER, batch, context, gamma, [seconds / gamma for seconds in drafts])
        yield row(model, VERIFY, batch, context, gamma, verifies)


def _burst(engine: Engine, batch: int, context: int, width: int, repeats: int, gamma: int) -> list[list[float]]:
    """Seconds of each phase of the steps in which all were running, the first ones left out."""
    tokens = width * (repeats + WARM_UP) + 1
    draw = random.Random(f"{batch} {context} {gamma}")
    length = max(1, context - tokens // 2)
    wanted: list[list[float]] = []
    for _ in range(4):  # requests end early where much is accepted
        prompts = [[draw.randrange(10, VOCABULARY) for _ in range(length)] for _ in range(batch)]
        engine.generate_all(prompts, tokens)
        steps = [step for step in engine.speculation()["steps"] if step[0] == batch and step[2] == gamma]
        wanted += steps[WARM_UP:]
        if len(wanted) >= repeats:
            return [list(phase) for phase in zip(*(step[4:] for step in wanted[:repeats]), strict=True)]
    raise AprilError(
        f"B {batch}, S {context}, gamma {gamma}: only {len(wanted)} of {repeats} steps ran with all requests"
    )


def _line(rows: list[dict[str, Any]]) -> str:
    def median(mode: str) -> list[float]:
        return [float(found["median_ms"]) for found in rows if found["mode"] == mode]

    target = statistics.median(median(TARGET))
    drafts = " ".join(f"{value / target:.2f}" for value in median(DRAFTER))
    verifies = " ".join(f"{value / target:.2f}" for value in median(VERIFY))
    return f"T_T {target:.1f} ms, T_D/T_T {drafts}, T_V/T_T {verifies}"
