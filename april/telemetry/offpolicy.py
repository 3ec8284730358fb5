"""How far what is trained is from the policy that is trained.

Two places know it. The rollout manager (``round_metrics``) knows versions and tokens: shares, lags, lengths,
repetition. The trainer's loss knows its own log probabilities: ``april.correction.hook`` gives the host the value of
each token, the host averages them over the step, and ``TrainerWatch`` derives from these means what is no mean.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from april import samples
from april.core import Group, Leg, RoundResult

logger = logging.getLogger(__name__)

KL_ALARM = 0.01
"""A step that changes the divergence between versions by more than this, in nats per token, is told."""
NGRAM = 4
"""Tokens of an n-gram: seq-rep-4 of Welleck et al. 2020 (arXiv 1908.04319, section 6.1)."""
RESPONSES = 64
"""So many responses of a round, evenly spaced, are searched for repetition."""
SMOOTHING = 0.1
"""Weight of the newest round in the average length."""


def lag_histogram(legs: Iterable[Leg], policy_version: int) -> dict[int, int]:
    """Tokens by lag, in rising order of lag."""
    counts: Counter[int] = Counter()
    for leg in legs:
        counts[max(0, policy_version - leg.policy_version)] += leg.length
    return dict(sorted(counts.items()))


def off_policy_share(histogram: dict[int, int]) -> float:
    """The share of tokens of an older version; 0 without tokens."""
    total = sum(histogram.values())
    return 1 - histogram.get(0, 0) / total if total else 0.0


def repetition_rate(tokens: Sequence[int], n: int = NGRAM) -> float:
    """``1 - distinct / all`` n-grams of a response: 0 where none comes twice, and where it has less than n tokens."""
    grams = len(tokens) - n + 1
    if grams < 1:
        return 0.0
    return 1 - len(set(zip(*(tokens[i:] for i in range(n)), strict=False))) / grams


def repetition(responses: Sequence[Sequence[int]]) -> float:
    """The mean rate over (at most ``RESPONSES``) responses."""
    chosen = responses[:: max(1, math.ceil(len(responses) / RESPONSES))]
    return sum(map(repetition_rate, chosen)) / len(chosen) if chosen else 0.0


@dataclass(slots=True)
class LengthTrend:
    """The mean response length of each round against the exponential average of the rounds before it."""

    average: float | None = None

    def growth(self, lengths: Sequence[int]) -> float:
        """This round's mean over that average (1 for the first round), which it joins then."""
        if not lengths:
            return 1.0
        mean = sum(lengths) / len(lengths)
        before = mean if self.average is None else self.average
        self.average = before + SMOOTHING * (mean - before)
        return mean / before if before else 1.0

    def to_dict(self) -> dict[str, float | None]:
        """For a checkpoint, as JSON."""
        return {"average": self.average}

    @classmethod
    def restore(cls, data: dict[str, float | None]) -> LengthTrend:
        """From :meth:`to_dict`."""
        return cls(**data)


def round_metrics(result: RoundResult, trend: LengthTrend) -> dict[str, float]:
    """What the rollout manager knows of a round, for the host's metrics of the step."""
    trained = [sample for group in result.trained for sample in samples.leaves(samples.payload(group))]
    histogram = lag_histogram(_legs(result.trained), result.plan.policy_version)
    weightless = bool(trained) and not any(_has_weight(sample) for sample in trained)
    if weightless:
        logger.warning("round %d: no trained token has weight: every loss mask is 0", result.plan.rollout_id)
    return {
        "april/off_policy_share": off_policy_share(histogram),
        **{f"april/lag_tokens/{lag}": float(tokens) for lag, tokens in histogram.items()},
        "april/length_growth": trend.growth([int(sample.response_length) for sample in trained]),
        "april/repetition_rate": repetition([_response(sample) for sample in trained]),
        "april/nothing_trained": float(weightless),
    }


def _legs(groups: Iterable[Group]) -> Iterable[Leg]:
    return (leg for group in groups for leg in group.legs)


def _response(sample: Any) -> list[int]:
    tokens: list[int] = sample.tokens[len(sample.tokens) - sample.response_length :]
    return tokens


def _has_weight(sample: Any) -> bool:
    if sample.loss_mask is None:
        return bool(sample.response_length > 0)
    return any(sample.loss_mask)


class TrainerWatch:
    """Derives step metrics from the hook's means, and tells of alarms; one for a run, in the process that logs.

    Its alarms are told when they begin, not at each step while they last.
    """

    def __init__(self, prefix: str = "train/") -> None:
        self._prefix = prefix
        self._kl: float | None = None
        self._alarms: set[str] = set()

    def derive(self, metrics: dict[str, Any]) -> dict[str, float]:
        """What to add to ``metrics``, a step as the host logs it; nothing where our hook took no part in it.

        april_ess
            Effective sample size of the weights over their number (Kish), 0 to 1. From means over the tokens of
            each response, so a long and a short response count alike, as in the loss.
        april_kl, april_kl_change
            k3 estimate of KL(behaviour || trainer's) over off-policy tokens, in nats a token; its change since the last
            step that had such tokens.
        april_kl_numerics
            The same over on-policy tokens, where only the two engines' numbers differ.
        april_kl_alarm, april_all_rejected
            1 where the change exceeds ``KL_ALARM``; where no response of the step was trained.
        """
        given = {name: self._number(metrics, f"april_{name}") for name in MEANS}
        means = {name: value for name, value in given.items() if value is not None}
        if len(means) < len(MEANS):
            return {}
        # Responses whose mask is 0 throughout are in the host's denominators: 1 on each counted token tells how many.
        counted, off = means["counted"], means["off_policy"]
        out = {"april_ess": _ratio(means["weight"] ** 2, means["weight_sq"] * counted)}
        if counted - off > 1e-6:
            out["april_kl_numerics"] = _ratio(means["kl_on"], counted - off)
        out |= self._divergence(_ratio(means["kl_off"], off)) if off > 0 else {}
        gone = counted > 0 and means["rejected"] >= counted * (1 - 1e-6)
        self._tell("rejected", gone, "every response of a step was rejected: nothing is trained", ())
        out["april_all_rejected"] = float(gone)
        return {self._prefix + name: value for name, value in out.items()}

    def _divergence(self, kl: float) -> dict[str, float]:
        before, self._kl = self._kl, kl
        change = 0.0 if before is None else kl - before
        # A divergence that is no number is a reason for alarm too.
        over = not abs(change) <= KL_ALARM
        text = "the KL between policy versions went from %.4f to %.4f nats a token in one step (alarm at %.2f)"
        self._tell("kl", over, text, (before, kl, KL_ALARM))
        return {"april_kl": kl, "april_kl_change": change, "april_kl_alarm": float(over)}

    def _tell(self, alarm: str, on: bool, text: str, values: tuple[Any, ...]) -> None:
        if on and alarm not in self._alarms:
            logger.warning(text, *values)
        (self._alarms.add if on else self._alarms.discard)(alarm)

    def _number(self, metrics: dict[str, Any], name: str) -> float | None:
        value = metrics.get(self._prefix + name)
        return None if value is None else float(value)


MEANS = ("counted", "off_policy", "weight", "weight_sq", "kl_off", "kl_on", "rejected")


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom else 0.0
