"""``april bench sd``: plain decoding, speculation always on, and speculation by the toggle, interleaved in one server.

A burst is so many prompts at once, each answered by the same number of tokens. Modes take turns, burst by burst, and a
speedup is the median of the ratios of neighbouring bursts, by the wall clock of the client: prefill, scheduling and
HTTP are in it. Steps of plain decoding with the algorithm loaded but off are compared with those of a server without
it, both running at the same time and asked in turn.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.launch.engine.server import Engine, running
from specrollout.settings import Settings

MODES = ("off", "on", "auto")
VOCABULARY = 30_000
"""Prompts are random tokens below this."""
LEARNING_BURSTS = 2
"""Before anything is measured: caches fill, and the model of the step times learns."""
STARTS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: batches, repeats of each mode, tokens of prompts and responses."""

    batches: Sequence[int] = (1, 2, 4, 8, 16)
    repeats: int = 3
    prompt: int = 64
    tokens: int = 96
    temperature: float = 1.0
    gamma: int | str = "auto"


def measure(model: Path, plan: Plan, settings: Settings, flags: Sequence[str] = ()) -> dict[str, Any]:
    """By batch: tokens per second of each mode, speedups, tau, alpha, and costs over a plain step."""
    found: dict[str, Any] = {}
    with running(model, *flags, speculation=settings) as engine:
        for batch in plan.batches:
            found[str(batch)] = _batch(engine, batch, plan)
            row = found[str(batch)]
            print(
                f"april: batch {batch}: AR {row['ar_tok_s']:.1f} tok/s, SD x{row['speedup']:.2f}, toggle "
                f"x{row['toggle_speedup']:.2f}, tau {row['tau']:.2f}, alpha {row['alpha']:.2f}, Tq/Tp "
                f"{row['tq_tp']:.2f}, TV/Tp {row['tv_tp']:.2f}",
                file=sys.stderr,
            )
    return found


def _batch(engine: Engine, batch: int, plan: Plan) -> dict[str, Any]:
    for mode in ("off", *["on"] * LEARNING_BURSTS, "auto"):
        engine.force(mode=mode, gamma=plan.gamma)
        _burst(engine, batch, plan, seed=-1)
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    sums: dict[str, dict[str, float]] = {mode: {} for mode in MODES}
    for repeat in range(plan.repeats):
        for mode in MODES if repeat % 2 == 0 else MODES[::-1]:
            engine.force(mode=mode, gamma=plan.gamma)
            before = engine.speculation()
            rates[mode].append(_burst(engine, batch, plan, seed=repeat))
            _add(sums[mode], before, engine.speculation())
    return _row(rates, sums)


def _burst(engine: Engine, batch: int, plan: Plan, seed: int) -> float:
    """Tokens per second of the burst."""
    draw = random.Random(1000 * batch + seed)
    prompts = [[draw.randrange(10, VOCABULARY) for _ in range(plan.prompt)] for _ in range(batch)]
    start = time.monotonic()
    engine.generate_all(prompts, plan.tokens, plan.temperature)
    return batch * plan.tokens / (time.monotonic() - start)


COUNTS = ("ar_steps", "ar_s", "cycles", "request_cycles", "drafted", "accepted", "draft_s", "verify_s")


def _add(sums: dict[str, float], before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in COUNTS:
        sums[name] = sums.get(name, 0.0) + after[name] - before[name]


def _row(rates: dict[str, list[float]], sums: dict[str, dict[str, float]]) -> dict[str, Any]:
    plain, cycles = sums["off"], sums["on"]
    step_s = plain["ar_s"] / plain["ar_steps"]
    draft_steps = cycles["drafted"] / cycles["request_cycles"] * cycles["cycles"]

    def speedup(mode: str) -> float:
        return statistics.median(on / off for on, off in zip(rates[mode], rates["off"], strict=True))

    toggled = sums["auto"]
    return {
        "ar_tok_s": statistics.median(rates["off"]),
        "sd_tok_s": statistics.median(rates["on"]),
        "toggle_tok_s": statistics.median(rates["auto"]),
        "speedup": speedup("on"),
        "toggle_speedup": speedup("auto"),
        "toggle_sd_share": toggled["cycles"] / max(1.0, toggled["cycles"] + toggled["ar_steps"]),
        "tau": 1 + cycles["accepted"] / cycles["request_cycles"],
        "alpha": cycles["accepted"] / cycles["drafted"],
        "gamma": cycles["drafted"] / cycles["request_cycles"],
        "tq_tp": cycles["draft_s"] / draft_steps / step_s,
        "tv_tp": cycles["verify_s"] / cycles["cycles"] / step_s,
        "ar_step_ms": 1e3 * step_s,
    }


def off_overhead(model: Path, plan: Plan, settings: Settings, flags: Sequence[str] = ()) -> dict[str, Any]:
    """What plain decoding costs more where the algorithm is loaded but off: a share of the time of a burst.

    Servers are asked in turn, so that they never compute at once; medians over ``4 x repeats`` neighbouring bursts. Two
    servers of the same kind differ by percents, by where their memory lies: they are started :data:`STARTS` times, in
    another order each, and a second one without the algorithm tells the difference that there is anyway.
    """
    ours_over: list[float] = []
    stock_over: list[float] = []
    for start in range(STARTS):
        order = [("stock", None), ("another", None), ("ours", settings)]
        order = order[start % 3 :] + order[: start % 3]
        with ExitStack() as stack:
            engines = {name: stack.enter_context(running(model, *flags, speculation=given)) for name, given in order}
            engines["ours"].force(mode="off")
            for engine in engines.values():
                _burst(engine, plan.batches[0], plan, seed=-1)
            for repeat in range(-(-4 * plan.repeats // STARTS)):
                names = list(engines) if repeat % 2 == 0 else list(engines)[::-1]
                rate = {name: _burst(engines[name], plan.batches[0], plan, seed=repeat) for name in names}
                ours_over.append(rate["stock"] / rate["ours"] - 1)
                stock_over.append(rate["stock"] / rate["another"] - 1)
    quarter = statistics.quantiles(ours_over, n=4)
    return {
        "off_overhead": statistics.median(ours_over),
        "off_overhead_quartiles": [quarter[0], quarter[2]],
        "stock_difference": statistics.median(stock_over),
    }
