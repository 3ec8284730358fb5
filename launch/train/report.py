"""What a run was, at its end: ``summary.json`` and ``run.png`` in the run directory, and a few lines for the user.

Read from what the run left behind (``events.jsonl``, ``metrics.jsonl``, ``decisions.jsonl``), whatever its end was.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from april.launch.train import measures
from april.launch.train.speculation import DECISIONS
from april.launch.train.tail import Tail
from april.telemetry import events, metrics

SUMMARY, PICTURE = "summary.json", "run.png"
TRAINED = "train/step"
TAU = "rollout/spec_accept_length"
MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Report:
    """A run's figures: times in seconds (``step_s`` and ``rollout_s`` are medians), rates in tokens per second.

    finished
        Whether it came to its end by itself.
    steps
        Rollouts whose samples went to the trainer.
    trained_tok_s
        From the start of the first rollout to the end of the last training step, at ``trained_until`` (unix s).
    off_policy_share
        Of the trained tokens, those that an older policy generated.
    reward_first, reward_last
        Means of the first and the last rollout; None where rewards are no numbers.
    tau
        Tokens of a speculative cycle, the mean over the rollouts; None without speculation.
    sd_share
        Of the engines' decode steps, those that speculated.
    memory
        Bytes by tag of the memory saver; empty where nothing was released.
    """

    finished: bool
    steps: int
    total_s: float
    first_rollout_s: float
    step_s: float
    rollout_s: float
    trained_tokens: int
    trained_tok_s: float
    rollout_tok_s: float
    max_lag: int
    off_policy_share: float
    wasted_tokens: int
    partials_resumed: int
    reward_first: float | None
    reward_last: float | None
    tau: float | None
    sd_share: float | None
    memory: dict[str, dict[str, int]]
    trained_until: float = field(repr=False)
    rounds: list[dict[str, Any]] = field(repr=False)

    def figures(self) -> dict[str, Any]:
        """What goes into the JSON document."""
        names = (each.name for each in fields(self) if each.repr)
        return {name: getattr(self, name) for name in names}


def write(run_dir: Path) -> None:
    """Write and print the report of a run that has ended; nothing where it never generated.

    What goes wrong is one line: the run's outcome stands already.
    """
    try:
        made = read(run_dir)
        if made is None:
            return
        (run_dir / SUMMARY).write_text(json.dumps(made.figures(), indent=1) + "\n")
        for line in lines(made):
            print(f"april: {line}", file=sys.stderr)
        from april.launch.train import picture

        picture.draw(made, run_dir / PICTURE)
        print(f"april: {run_dir / SUMMARY}, {run_dir / PICTURE}", file=sys.stderr)
    except Exception as error:
        print(f"april: no full report of this run: {type(error).__name__}: {error}", file=sys.stderr)


def read(run_dir: Path) -> Report | None:
    """The figures; None where no rollout has ended."""
    happened = Tail(run_dir / events.FILE).new()
    rounds = [event for event in happened if event["event"] == "round"]
    if not rounds:
        return None
    rows = Tail(run_dir / metrics.FILE).new()
    begun = next((event["time"] for event in happened if event["event"] == "started"), rounds[0]["started"])
    trained = sum(this["trained_tokens"] for this in rounds)
    until = max([row["time"] for row in rows if TRAINED in row], default=rounds[-1]["ended"])
    rewards = [this["reward_mean"] for this in rounds if this["reward_mean"] is not None]
    taus = [row[TAU] for row in rows if row.get(TAU)]
    full = [event["wasted_tokens"] for event in happened if event["event"] == "buffer_full"]
    return Report(
        finished=any(event["event"] == "finished" for event in happened),
        steps=len(rounds),
        total_s=max(happened[-1]["time"], until) - begun,
        first_rollout_s=rounds[0]["ended"] - begun,
        step_s=statistics.median(_steps(rounds, until)),
        rollout_s=statistics.median(this["ended"] - this["started"] for this in rounds),
        trained_tokens=trained,
        trained_tok_s=trained / _positive(until - rounds[0]["started"]),
        rollout_tok_s=sum(this["generated_tokens"] for this in rounds)
        / _positive(sum(this["ended"] - this["started"] for this in rounds)),
        max_lag=max(this["max_lag"] for this in rounds),
        off_policy_share=sum(this["off_policy_tokens"] for this in rounds) / max(1, trained),
        wasted_tokens=sum(this["wasted_tokens"] for this in rounds) + sum(full),
        partials_resumed=sum(this["partials_resumed"] for this in rounds),
        reward_first=rewards[0] if rewards else None,
        reward_last=rewards[-1] if rewards else None,
        tau=statistics.fmean(taus) if taus else None,
        sd_share=_sd_share(run_dir),
        memory=measures.memory(rows),
        trained_until=until,
        rounds=rounds,
    )


def _steps(rounds: Sequence[dict[str, Any]], until: float) -> Iterator[float]:
    """From the start of a rollout to that of the next; the last until the trainer was done."""
    begins = [this["started"] for this in rounds] + [max(until, rounds[-1]["ended"])]
    return (after - before for before, after in itertools.pairwise(begins))


def _sd_share(run_dir: Path) -> float | None:
    share = measures.SdShare()
    for entry in Tail(run_dir / DECISIONS).new():
        share.take(entry)
    return share.value


def _positive(seconds: float) -> float:
    """A divisor: clocks of two machines may differ."""
    return max(seconds, 1e-3)


def lines(made: Report) -> list[str]:
    """The figures, for people."""
    ended = "" if made.finished else " (not finished)"
    found = [
        f"{made.steps} steps in {made.total_s:.0f} s{ended}, first rollout done after {made.first_rollout_s:.0f} s: "
        f"{made.step_s:.2f} s a step, {made.rollout_s:.2f} s a rollout (medians), "
        f"{made.trained_tok_s:.0f} trained tokens/s",
        f"lag up to {made.max_lag} versions, {made.off_policy_share:.0%} of the trained tokens off-policy, "
        f"{made.partials_resumed} partials resumed, {made.wasted_tokens} tokens wasted",
    ]
    if made.reward_first is not None and made.reward_last is not None:
        found[1] += f", mean reward {made.reward_first:.3f} at first, {made.reward_last:.3f} at last"
    speculated = [f"tau {made.tau:.2f}"] if made.tau is not None else []
    speculated += [f"{made.sd_share:.0%} of the decode steps"] if made.sd_share is not None else []
    if speculated:
        found.append(f"speculation: {', '.join(speculated)}")
    if made.memory:
        tags = (
            f"{tag} {sizes['reserved'] / MIB:.0f} ({sizes['paused'] / MIB:.0f})" for tag, sizes in made.memory.items()
        )
        found.append(f"memory by tag, MiB (released between the phases): {', '.join(tags)}")
    return found
