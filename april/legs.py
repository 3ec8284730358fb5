"""The leg budget: how much of a response one request may generate in one round.

A budget of F lets a request generate at most F x ``max_response_len`` tokens in a round. A response that reaches it is
parked, its KV freed, and goes on in a later round; its place goes to another. F = 1 is no budget.

``auto`` follows the engines' utilization, the mean number of running responses over their peak in the round:
low utilization means that few long responses held the round up, so legs get shorter; high utilization that parking
buys nothing, so they get longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from april.core import Group, Span

START = 0.5
LEAST, MOST = 0.125, 1.0
LOW, HIGH = 0.75, 0.9
STEP = 1.25


def leg_tokens(budget: float, max_response_len: int) -> int | None:
    """Tokens of one leg at most, or None where nothing is limited."""
    return None if budget >= 1.0 else max(1, math.ceil(budget * max_response_len))


def utilization(spans: Sequence[Span]) -> float | None:
    """Mean number of running responses over their peak, from first start to last end; None for an empty round."""
    events = sorted([(span.start, 1) for span in spans] + [(span.end, -1) for span in spans])
    running = peak = 0
    area, before = 0.0, events[0][0] if events else 0.0
    for at, change in events:
        area += running * (at - before)
        running, before = running + change, at
        peak = max(peak, running)
    took = events[-1][0] - events[0][0] if events else 0.0
    return area / (peak * took) if peak and took > 0 else None


@dataclass(slots=True)
class AutoBudget:
    """``--april-leg-budget auto``: a budget for the next round from the utilization of the last."""

    budget: float = START

    def observe(self, spans: Sequence[Span]) -> float:
        """Take in a round; returns the budget for the next."""
        used = utilization(spans)
        if used is not None and used < LOW:
            self.budget = max(LEAST, self.budget / STEP)
        elif used is not None and used > HIGH:
            self.budget = min(MOST, self.budget * STEP)
        return self.budget

    def to_dict(self) -> dict[str, float]:
        """For a checkpoint, as JSON."""
        return {"budget": self.budget}

    @classmethod
    def restore(cls, data: dict[str, float]) -> AutoBudget:
        """From :meth:`to_dict`."""
        return cls(**data)


def spans(group: Group, rollout_id: int, outcome: str | None = None) -> list[Span]:
    """The legs that this round ran, for the timeline."""
    found = []
    for position, member in enumerate(group.members):
        if member.started is None or member.ended is None:
            continue
        tokens = member.generated_in(rollout_id)
        result = outcome or ("finished" if member.has_ended else "partial")
        found.append(Span(group.index, position, member.started, member.ended, tokens, result))
    return found
