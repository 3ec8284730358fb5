"""The figures of a quick start, read from what its runs left behind."""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from april.errors import AprilError
from april.launch.quickstart.runs import rounds_of
from april.telemetry import events

LOGPROB_DIFFERENCE = "train/train_rollout_logprob_abs_diff"
HELD_OUT = "eval/heldout"
SHOWN = (
    "partials_resumed",
    "wasted_tokens",
    "weight_sync_logprob_diff",
    "first_rollout_s",
    "reward_first",
    "reward_last",
)


@dataclass(frozen=True, slots=True)
class Summary:
    """One mode's figures: times in seconds, rates in tokens per second, rewards in [0, 1].

    ``reward_first`` and ``reward_last``: mean over the held-out prompts before the first and after the last step.
    ``weight_sync_logprob_diff``: the largest mean absolute difference between the engine's and the trainer's log
    probabilities over the steps whose tokens all come from the newest policy; None where there is no such step.
    ``step_s`` and ``rollout_s`` are medians. Rates end with the last training step (``trained_until``, unix s): the
    evaluation and the end of the run are not in them.
    """

    mode: str
    steps: int
    partials_resumed: int
    wasted_tokens: int
    weight_sync_logprob_diff: float | None
    first_rollout_s: float
    total_s: float
    reward_first: float | None
    reward_last: float | None
    trained_tok_s: float
    rollout_tok_s: float
    step_s: float
    rollout_s: float
    max_lag: int
    off_policy_share: float
    rounds: list[dict[str, Any]] = field(repr=False)
    trained_until: float = 0.0

    def figures(self) -> dict[str, Any]:
        """What goes into the JSON document."""
        return {name: value for name, value in asdict(self).items() if name not in ("mode", "rounds", "trained_until")}


def summarize(run_dir: Path, mode: str, steps: int) -> Summary:
    """The figures of a finished run.

    Raises:
        AprilError: when the run directory does not hold ``steps`` rounds.
    """
    rounds = rounds_of(run_dir)
    if len(rounds) != steps:
        raise AprilError(f"{run_dir} holds {len(rounds)} rounds, not {steps}")
    started, finished = (events.read(run_dir / "events.jsonl", kind)[0]["time"] for kind in ("started", "finished"))
    trained = sum(this["trained_tokens"] for this in rounds)
    rollout = sum(this["ended"] - this["started"] for this in rounds)
    difference = _sync_difference(run_dir, rounds)
    trained_until = _rows(run_dir, LOGPROB_DIFFERENCE)[-1]["time"]
    begins = [this["started"] for this in rounds] + [trained_until]
    held_out = _logged(run_dir, HELD_OUT)
    return Summary(
        mode=mode,
        steps=steps,
        partials_resumed=sum(this["partials_resumed"] for this in rounds),
        wasted_tokens=sum(this["wasted_tokens"] for this in rounds),
        weight_sync_logprob_diff=difference,
        first_rollout_s=rounds[0]["ended"] - started,
        total_s=finished - started,
        reward_first=held_out[0] if held_out else None,
        reward_last=held_out[-1] if len(held_out) > 1 else None,
        trained_tok_s=trained / (trained_until - rounds[0]["started"]),
        rollout_tok_s=sum(this["generated_tokens"] for this in rounds) / rollout,
        step_s=statistics.median(after - before for before, after in itertools.pairwise(begins)),
        rollout_s=statistics.median(this["ended"] - this["started"] for this in rounds),
        max_lag=max(this["max_lag"] for this in rounds),
        off_policy_share=sum(this["off_policy_tokens"] for this in rounds) / max(1, trained),
        rounds=rounds,
        trained_until=trained_until,
    )


def _rows(run_dir: Path, name: str) -> list[dict[str, Any]]:
    """Every line of the metrics that has ``name``, in order."""
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if name in row]


def _logged(run_dir: Path, name: str) -> list[float]:
    """Every logged value of a metric, in order."""
    return [row[name] for row in _rows(run_dir, name)]


def _sync_difference(run_dir: Path, rounds: list[dict[str, Any]]) -> float | None:
    """One training step for each round, in the same order."""
    differences = _logged(run_dir, LOGPROB_DIFFERENCE)
    if len(differences) != len(rounds):
        raise AprilError(f"{run_dir} holds {len(differences)} training steps for {len(rounds)} rounds")
    pairs = zip(differences, rounds, strict=True)
    return max((value for value, this in pairs if this["off_policy_tokens"] == 0), default=None)


def document(results: dict[str, Summary], host: str, model: str, steps: int, total_s: float) -> dict[str, Any]:
    """The JSON object: the figures of april, or of the only mode, and those of each mode.

    ``weight_sync_logprob_diff`` is the largest of all modes; ``first_rollout_s`` that of the first run.
    """
    runs = list(results.values())
    shown = results.get("april", runs[0]).figures()
    differences = [run.weight_sync_logprob_diff for run in runs if run.weight_sync_logprob_diff is not None]
    return {
        "host": host,
        "model": model,
        "steps": steps,
        **{name: shown[name] for name in SHOWN},
        "weight_sync_logprob_diff": max(differences, default=None),
        "first_rollout_s": runs[0].first_rollout_s,
        "total_s": total_s,
        "modes": {mode: run.figures() for mode, run in results.items()},
    }


ROWS = (
    ("trained tokens / s", "trained_tok_s", "{:.0f}"),
    ("rollout tokens / s", "rollout_tok_s", "{:.0f}"),
    ("step, s (median)", "step_s", "{:.2f}"),
    ("rollout, s (median)", "rollout_s", "{:.2f}"),
    ("partials resumed", "partials_resumed", "{}"),
    ("wasted tokens", "wasted_tokens", "{}"),
    ("largest lag, versions", "max_lag", "{}"),
    ("off-policy tokens", "off_policy_share", "{:.0%}"),
    ("held-out reward before", "reward_first", "{:.3f}"),
    ("held-out reward after", "reward_last", "{:.3f}"),
    ("log-prob difference on-policy", "weight_sync_logprob_diff", "{:.4f}"),
    ("first rollout done after, s", "first_rollout_s", "{:.1f}"),
    ("whole run, s", "total_s", "{:.1f}"),
)


def table(results: dict[str, Summary], total_s: float) -> str:
    """The figures of the modes side by side."""
    width = max(len(label) for label, _, _ in ROWS)
    lines = [f"{'':{width}}" + "".join(f"{mode:>10}" for mode in results)]
    for label, name, form in ROWS:
        values = [getattr(run, name) for run in results.values()]
        cells = ["-" if value is None else form.format(value) for value in values]
        lines.append(f"{label:{width}}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join([*lines, f"in all {total_s:.0f} s"])
