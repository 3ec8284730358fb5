"""The figures of a benchmark, read from the events of its run."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.errors import AprilError
from april.launch.bench import account, bound
from april.launch.bench.account import Round, Tally
from april.launch.bench.bound import Speed, Stair
from april.launch.bench.settings import Settings


@dataclass(frozen=True, slots=True)
class Result:
    """All rounds of each mode, their figures, and the speed that they were held against."""

    rounds: dict[str, list[Round]]
    tallies: dict[str, Tally]
    speed: Speed
    stairs: list[Stair]

    def speedup(self, other: str) -> float | None:
        """april's trained tokens per second over those of another mode, where both ran."""
        if "april" not in self.tallies or other not in self.tallies:
            return None
        return self.tallies["april"].rate / self.tallies[other].rate


def read(events: Sequence[Mapping[str, Any]], settings: Settings) -> Result:
    """From the events of a finished run.

    Raises:
        AprilError: where rounds are missing, or do not add up.
    """
    rounds: dict[str, list[Round]] = {mode: [] for mode in settings.modes}
    for event in events:
        if event["event"] == "bench_round":
            rounds[event["mode"]].append(account.of_event(dict(event)))
    for mode, found in rounds.items():
        if len(found) != settings.cycles:
            raise AprilError(f"mode {mode}: the run holds {len(found)} rounds, not {settings.cycles}")
    calibrations = [event for event in events if event["event"] == "calibration"]
    stairs = [Stair(**stair) for event in calibrations for stair in event["stairs"]]
    # Where prompts are short, the time of a prefill is not that of its tokens.
    longest = max((event["prompt"] for event in calibrations), default=0)
    prefills = [event["prefill"] for event in calibrations if event["prompt"] == longest]
    prefill = sum(prefills) / max(1, len(prefills))
    speed = bound.fit(stairs, prefill, settings.concurrency)
    tallies = {mode: account.tally(found, settings.warm_up, settings.samples, speed) for mode, found in rounds.items()}
    return Result(rounds, tallies, speed, stairs)


def document(result: Result, settings: Settings, about: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object. Rates are tokens per second; ``about`` joins it (host, model, machine)."""
    return {
        "modes": {mode: _figures(tally) for mode, tally in result.tallies.items()},
        "speedup_vs_sync": result.speedup("sync"),
        "speedup_vs_upstream_partial": result.speedup("upstream-partial"),
        **about,
        "settings": {
            name: getattr(settings, name)
            for name in (
                *("batch", "samples", "over_sampling", "concurrency", "rounds", "warm_up", "max_len", "cap", "seed"),
            )
        },
        "speed": {
            "step_ms": {"fixed": 1e3 * result.speed.fixed, "per_response": 1e3 * result.speed.per_response},
            "per_context_token_us": 1e6 * result.speed.per_token,
            "prefill_ms_per_token": 1e3 * result.speed.prefill,
            "fit_error": bound.error(result.speed, result.stairs),
        },
        "notes": notes(result),
    }


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "trained_tokens_per_s": tally.rate,
        "wasted_tokens": tally.wasted,
        "bound_share": tally.bound_share,
        "off_policy_share": tally.off_policy_share,
        "max_lag": tally.max_lag,
        "rounds": tally.rounds,
        "lag_histogram": {str(lag): tokens for lag, tokens in tally.lags.items()},
        "trained_tokens": tally.trained,
        "generated_tokens": tally.generated,
        "carried_in_tokens": tally.carried_in,
        "carried_out_tokens": tally.carried_out,
        "seconds": tally.seconds,
        "round_seconds": list(tally.round_seconds),
    }


def notes(result: Result) -> list[str]:
    """What a reader must know to trust the figures."""
    found = [
        f"{mode}: {tally.bound_share:.2f} of the bound: no schedule can do that; the machine was slower while the step "
        "time was measured than in the rounds (other load), so no share of this run means anything"
        for mode, tally in result.tallies.items()
        if tally.bound_share > 1
    ]
    error = bound.error(result.speed, result.stairs)
    if error > 0.15:
        found.append(
            f"the step times scatter by {error:.0%} around their model: the machine was busy with other things"
        )
    return found


def machine() -> dict[str, Any]:
    """What this machine is, and how busy it is now."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    return {
        "cpus": os.cpu_count(),
        "cpu": model,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
        "load_before": round(os.getloadavg()[0], 2),
    }


ROWS: tuple[tuple[str, Callable[[Tally], str]], ...] = (
    ("trained tokens / s", lambda tally: f"{tally.rate:.0f}"),
    ("share of the packing bound", lambda tally: f"{tally.bound_share:.2f}"),
    ("wasted tokens", lambda tally: str(tally.wasted)),
    ("trained tokens", lambda tally: str(tally.trained)),
    ("seconds", lambda tally: f"{tally.seconds:.1f}"),
    ("off-policy tokens", lambda tally: f"{tally.off_policy_share:.0%}"),
    ("largest lag, versions", lambda tally: str(tally.max_lag)),
)


def table(result: Result) -> str:
    """The figures of the modes side by side."""
    lines = [f"{'':28}" + "".join(f"{mode:>18}" for mode in result.tallies)]
    for label, cell in ROWS:
        lines.append(f"{label:28}" + "".join(f"{cell(tally):>18}" for tally in result.tallies.values()))
    for other in ("sync", "upstream-partial"):
        if (speedup := result.speedup(other)) is not None and other in result.tallies:
            lines.append(f"april is {speedup:.2f} times as fast as {other}")
    return "\n".join([*lines, *notes(result)])
