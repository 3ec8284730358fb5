"""How many tokens to draft: the published ladder, the model's optimum, and a bandit that needs no model.

`AcceptanceCurve` is what they share: how often a draft survives to each position. Pure logic, no clock and no engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specrollout.roofline.model import Floats, LatencyModel, cycle_time

LONGEST = 16


class AcceptanceCurve:
    """Acceptance by position: of the drafts that reached position i, the share that passed it; old cycles fade.

    A chain accepts position i only after all before it, so L(gamma) = 1 + sum over i <= gamma of the product of the
    first i shares. Positions that were never drafted take the share of the last one that was.
    """

    def __init__(self, longest: int = LONGEST, memory_cycles: float = 512.0, expected: float = 0.8) -> None:
        self._keep = 1.0 - 1.0 / memory_cycles
        # One made-up draft per position, so that a curve without data is the expected one.
        self._reached = np.ones(longest)
        self._passed = np.full(longest, expected)
        self._measured = np.zeros(longest, dtype=bool)

    def observe(self, gamma: int, accepted: int) -> None:
        """One request's cycle: `accepted` of `gamma` drafts were accepted."""
        assert 0 <= accepted <= gamma <= self._reached.size, (accepted, gamma)
        reached = min(accepted + 1, gamma)
        self._reached[:reached] *= self._keep
        self._passed[:reached] *= self._keep
        self._reached[:reached] += 1.0
        self._passed[:accepted] += 1.0
        self._measured[:reached] = True

    def shares(self) -> Floats:
        """Acceptance share of each position."""
        shares = np.asarray(self._passed / self._reached)
        known = np.flatnonzero(self._measured)
        if known.size:
            shares[known[-1] + 1 :] = shares[known[-1]]
        return shares

    def tokens_per_cycle(self, gamma: int) -> float:
        """L(gamma): mean tokens that a cycle of that draft length adds."""
        return float(1.0 + np.cumprod(self.shares()[:gamma]).sum())


@dataclass(slots=True)
class Ladder:
    """The published rule, once per rollout over all engines: a rung up or down after `patience` rollouts in a row."""

    rungs: Sequence[int] = (5, 7, 9, 11)
    up: float = 0.94
    down: float = 0.85
    patience: int = 2
    _rung: int = 0
    _high: int = 0
    _low: int = 0

    @property
    def gamma(self) -> int:
        """The draft length of the next rollout."""
        return self.rungs[self._rung]

    def after_rollout(self, accepted: int, drafted: int) -> int:
        """Take a rollout's sums over all engines; the draft length of the next one. No drafts, no change."""
        if drafted <= 0:
            return self.gamma
        share = accepted / drafted
        self._high = self._high + 1 if share >= self.up else 0
        self._low = self._low + 1 if share <= self.down else 0
        if self._high >= self.patience and self._rung + 1 < len(self.rungs):
            self._rung, self._high = self._rung + 1, 0
        elif self._low >= self.patience and self._rung > 0:
            self._rung, self._low = self._rung - 1, 0
        return self.gamma


def optimal_gamma(
    model: LatencyModel, curve: AcceptanceCurve, batch: float, context: float, longest: int = LONGEST
) -> tuple[int, float]:
    """The draft length in 1..longest with the most predicted tokens per second and request, and that rate."""
    lengths = np.arange(1.0, longest + 1)
    gained = np.array([curve.tokens_per_cycle(int(g)) for g in lengths])
    rates = gained / cycle_time(model, batch, context, lengths)
    best = int(np.argmax(rates))
    return int(lengths[best]), float(rates[best])


@dataclass(slots=True)
class Optimal:
    """`optimal_gamma` every `every` steps; between them the draft length stays. A change must promise `margin` more."""

    model: LatencyModel
    every: int = 32
    longest: int = LONGEST
    margin: float = 0.01
    gamma: int = 5
    _steps: int = 0

    def step(self, curve: AcceptanceCurve, batch: float, context: float) -> int:
        """The draft length of the next cycle."""
        if self._steps % self.every == 0:
            best, rate = optimal_gamma(self.model, curve, batch, context, self.longest)
            now = curve.tokens_per_cycle(self.gamma) / float(cycle_time(self.model, batch, context, self.gamma))
            if rate > (1.0 + self.margin) * now:
                self.gamma = best
        self._steps += 1
        return self.gamma


class Bandit:
    """Draft lengths as arms, tokens per second as reward; discounted, for the best arm moves as batch and context do.

    Optimism under uncertainty (UCB) on rewards relative to the best arm's mean, so that it has no scale to set.
    """

    def __init__(
        self, arms: Sequence[int] = (1, 3, 5, 7, 9, 11, 13, 15), memory: float = 200.0, explore: float = 0.1
    ) -> None:
        self._arms = list(arms)
        self._keep = 1.0 - 1.0 / memory
        self._explore = explore
        self._pulls = np.zeros(len(self._arms))
        self._reward = np.zeros(len(self._arms))

    def choose(self) -> int:
        """The draft length of the next stretch of cycles: each arm once, then the most promising."""
        untried = np.flatnonzero(self._pulls < 1e-3)
        if untried.size:
            return self._arms[int(untried[0])]
        means = self._reward / self._pulls
        doubt = np.sqrt(math.log(1.0 + float(self._pulls.sum())) / self._pulls)
        return self._arms[int(np.argmax(means + self._explore * float(means.max()) * doubt))]

    def observe(self, gamma: int, tokens: float, seconds: float) -> None:
        """Tokens per request that a stretch at this draft length gave, and its time."""
        arm = self._arms.index(gamma)
        self._pulls *= self._keep
        self._reward *= self._keep
        self._pulls[arm] += 1.0
        self._reward[arm] += tokens / seconds
