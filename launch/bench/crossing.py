"""``april bench crossing``: a rollout whose batch grows and shrinks: speculation pays, does not, and pays again.

Waves of requests with long-tailed lengths; the next wave is sent when few of the last are left, as over-sampled rounds
refill an engine. The same requests run plainly, speculating always, and by the toggle; then with fixed draft lengths
and by rule. The oracle knows, for each number of running requests, the tokens per second that plain steps and cycles
had in these very runs, and decodes the toggle's tokens at the faster of both, with no cost of switching.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from april.launch.engine.server import Engine, running
from specrollout.settings import Settings

VOCABULARY = 30_000
ENOUGH = 5
"""Steps of a kind at a batch without which the oracle does not know their speed."""
Step = Sequence[Any]
"""Batch, context, gamma, accepted drafts of each request, seconds of each phase."""


@dataclass(frozen=True, slots=True)
class Waves:
    """``requests`` a wave, ``waves`` of them; median length in tokens, spread of its logarithm, the longest."""

    requests: int = 24
    waves: int = 3
    median: int = 40
    spread: float = 0.9
    longest: int = 240
    prompt: int = 64
    refill: int = 2
    seed: int = 0

    def lengths(self) -> list[list[int]]:
        """Of each wave."""
        draw = random.Random(self.seed)
        return [
            [
                max(1, min(self.longest, round(draw.lognormvariate(0, self.spread) * self.median)))
                for _ in range(self.requests)
            ]
            for _ in range(self.waves)
        ]


@dataclass(slots=True)
class Run:
    """One way through the waves."""

    seconds: float = 0.0
    tokens: int = 0
    steps: list[Step] = field(default_factory=list)
    cycles: int = 0
    switches: int = 0


def measure(model: Path, waves: Waves, settings: Settings, repeats: int, flags: Sequence[str]) -> dict[str, Any]:
    """All ways, taken in turn; returns the report."""
    ways: dict[str, dict[str, Any]] = {
        "plain": {"mode": "off"},
        "always": {"mode": "on", "gamma": "auto"},
        "toggle": {"mode": "auto", "gamma": "auto"},
        "fixed 5": {"mode": "on", "gamma": 5},
        "fixed 11": {"mode": "on", "gamma": 11},
    }
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    with running(model, *flags, speculation=settings) as engine:
        engine.force(record=True)
        for name in ("plain", "always", "toggle"):  # nothing of it counts: the model learns
            engine.force(**ways[name])
            _through(engine, waves)
        for repeat in range(repeats):
            for name in list(ways) if repeat % 2 == 0 else list(ways)[::-1]:
                engine.force(**ways[name])
                run = _through(engine, waves)
                runs[name].append(run)
                print(f"april: {name}: {run.tokens / run.seconds:.1f} tok/s", file=sys.stderr)
    return {**_report(runs), "acceptance": trace(runs["fixed 11"])}


def _through(engine: Engine, waves: Waves) -> Run:
    before = engine.speculation()  # takes away the steps recorded so far
    left = _Left()
    draw = random.Random(waves.seed)
    run = Run()
    start = time.monotonic()
    with ThreadPoolExecutor(waves.requests * 2) as pool:
        futures: list[Future[Any]] = []
        for lengths in waves.lengths():
            for length in lengths:
                prompt = [draw.randrange(10, VOCABULARY) for _ in range(waves.prompt)]
                left.add()
                futures.append(pool.submit(engine.generate, prompt, length, 1.0))
                futures[-1].add_done_callback(left.done)
                run.tokens += length
            left.until(waves.refill)
        for future in futures:
            future.result()
    run.seconds = time.monotonic() - start
    after = engine.speculation()
    run.steps = after["steps"]
    run.cycles = after["cycles"] - before["cycles"]
    run.switches = after["switches"] - before["switches"]
    return run


class _Left:
    """Requests that run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def add(self) -> None:
        with self._changed:
            self._count += 1

    def done(self, _: Any) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def until(self, few: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._count <= few)


def _report(runs: dict[str, list[Run]]) -> dict[str, Any]:
    rate = {name: statistics.median(run.tokens / run.seconds for run in of_way) for name, of_way in runs.items()}
    # Cycles of fixed draft lengths are left out: the oracle is as good as the rule.
    known = [step for way in ("plain", "always", "toggle") for run in runs[way] for step in run.steps]
    plain, cycles = speeds(known, False), speeds(known, True)
    toggled = [step for run in runs["toggle"] for step in run.steps]
    spent = sum(sum(step[4:]) for step in toggled)
    best = oracle_seconds(toggled, plain, cycles)
    return {
        "tokens_per_s": rate,
        "over_plain": {name: value / rate["plain"] for name, value in rate.items()},
        "toggle_regret": spent / best - 1,
        "toggle_switches": [run.switches for run in runs["toggle"]],
        "toggle_sd_share": by_batch(toggled),
        "speeds": {str(b): [plain.get(b), cycles.get(b)] for b in sorted(set(plain) | set(cycles))},
        "gamma": {
            "rule_over_fixed_5": rate["always"] / rate["fixed 5"],
            "rule_over_fixed_11": rate["always"] / rate["fixed 11"],
        },
    }


def trace(runs: Sequence[Run]) -> dict[str, Any]:
    """Accepted drafts of each request and cycle in the order of the runs, for ``april calibrate simulate``."""
    cycles = [step for run in runs for step in run.steps if step[2] > 0]
    return {"gamma": cycles[0][2], "accepted": [count for step in cycles for count in step[3]]}


def speeds(steps: Sequence[Step], speculating: bool) -> dict[int, float]:
    """Tokens per second by batch, of plain steps or of cycles; batches with few steps are left out."""
    sums: dict[int, list[float]] = {}
    for batch, _, gamma, accepted, *phases in steps:
        if (gamma > 0) == speculating:
            row = sums.setdefault(int(batch), [0.0, 0.0, 0.0])
            row[0] += 1
            row[1] += batch + sum(accepted)
            row[2] += sum(phases)
    return {batch: tokens / seconds for batch, (count, tokens, seconds) in sums.items() if count >= ENOUGH}


def oracle_seconds(steps: Sequence[Step], plain: dict[int, float], cycles: dict[int, float]) -> float:
    """Seconds for the tokens of ``steps`` at the faster speed of each batch; a batch without a speed at its own."""
    total = 0.0
    for batch, _, _, accepted, *phases in steps:
        known = [table[int(batch)] for table in (plain, cycles) if int(batch) in table]
        total += (batch + sum(accepted)) / max(known) if known else sum(phases)
    return total


def by_batch(steps: Sequence[Step]) -> dict[str, float]:
    """Share of cycles among the steps of each batch."""
    found: dict[int, list[bool]] = {}
    for batch, _, gamma, *_rest in steps:
        found.setdefault(int(batch), []).append(gamma > 0)
    return {str(batch): sum(kinds) / len(kinds) for batch, kinds in sorted(found.items())}
