"""Events of a small benchmark that never ran."""

from __future__ import annotations

from typing import Any

import pytest

from april.launch.bench.bound import Speed
from april.launch.bench.settings import MODES, Settings

SPEED = Speed(0.03, 0.002, 1e-5, 0.001, 4)


@pytest.fixture
def bench_settings() -> Settings:
    return Settings(batch=1, samples=2, rounds=2, warm_up=1, concurrency=4, max_len=16, lengths=tuple(range(3, 27)))


@pytest.fixture
def bench_events(bench_settings: Settings) -> list[dict[str, Any]]:
    """Each round trains the next two responses; the partial modes hold one token of the next."""
    events: list[dict[str, Any]] = [{"event": "ready", "time": 0.0}]
    seconds = {"sync": 2.0, "upstream-partial": 1.5, "april": 1.0}
    for cycle in range(bench_settings.cycles):
        for prompt in (8, 160):
            stairs = [
                {"batch": b, "steps": 8, "context": b * prompt, "seconds": 8 * SPEED.step(b, b * prompt)}
                for b in (3, 2, 1)
            ]
            events.append({"event": "calibration", "prompt": prompt, "prefill": prompt / 1e5, "stairs": stairs})
        for mode in MODES:
            events.append(_round(bench_settings, mode, cycle, 100.0 * cycle, seconds[mode]))
    return events


def _round(settings: Settings, mode: str, cycle: int, started: float, seconds: float) -> dict[str, Any]:
    first, held = 2 * cycle, mode != "sync"
    had = 1 if held and cycle else 0
    calls = [
        [sample, had if sample == first else 0, settings.lengths[sample], cycle, started, started + seconds]
        for sample in (first, first + 1)
    ]
    if held:
        calls.append([first + 2, 0, 1, cycle, started, started + seconds])
    return {
        **{"event": "bench_round", "time": 0.0, "mode": mode, "cycle": cycle, "version": cycle},
        **{"started": started, "ended": started + seconds, "prompt": 6.0, "calls": calls},
        "trained": [[sample, settings.lengths[sample]] for sample in (first, first + 1)],
        "held": [[first + 2, 1]] if held else [],
    }
