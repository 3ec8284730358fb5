"""Decisions on made-up rollouts: what a toggle loses against an oracle, and what a rule for the draft length gains.

An engine decodes rounds of requests with long-tailed lengths; over-sampled rounds refill it before the last request is
done, so that the batch shrinks and grows. Times are those of a model, the truth, with noise on each step; accepted
tokens are drawn position by position. Nothing here is measured: it compares rules, and says nothing of a device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from april.errors import UsageError
from specrollout.gamma import LONGEST, AcceptanceCurve, Bandit, Ladder, Optimal
from specrollout.roofline.model import FloatLike, Floats, LatencyModel
from specrollout.roofline.online import OnlineRoofline
from specrollout.roofline.sweep import DRAFTER, TARGET, VERIFY
from specrollout.toggle import Decision, View

OBSERVE_EVERY = 16  # steps between two observations of an online model
ARM_CYCLES = 16  # cycles between two choices of the bandit
RECORDED_WINDOW = 512  # counts of a record that a rollout of the simulation draws from


@dataclass(frozen=True, slots=True)
class Rollout:
    """Rounds of `requests` responses, log-normal lengths up to `longest` tokens; the next begins at `refill` left."""

    requests: int = 64
    rounds: int = 3
    median_tokens: float = 600.0
    spread: float = 0.9
    longest: int = 4096
    prompt_tokens: int = 300
    refill: int = 2
    seed: int = 0


@dataclass(slots=True)
class Engine:
    """The running requests: tokens to go and context of each. Iterates over the moments before each step."""

    rollout: Rollout
    _to_go: Floats = field(default_factory=lambda: np.zeros(0))
    _context: Floats = field(default_factory=lambda: np.zeros(0))

    def steps(self) -> Iterator[tuple[int, float]]:
        """Batch and mean context before each step; the caller advances in between."""
        random = np.random.default_rng(self.rollout.seed)
        for left in reversed(range(self.rollout.rounds)):
            lengths = random.lognormal(np.log(self.rollout.median_tokens), self.rollout.spread, self.rollout.requests)
            lengths = np.clip(lengths, 1, self.rollout.longest)
            self._to_go = np.concatenate([self._to_go, lengths])
            self._context = np.concatenate([self._context, np.full(lengths.size, float(self.rollout.prompt_tokens))])
            while self._to_go.size > (self.rollout.refill if left else 0):
                yield self._to_go.size, float(self._context.mean())

    @property
    def to_go(self) -> Floats:
        """Tokens to go of each running request."""
        return self._to_go

    def advance(self, tokens: FloatLike) -> None:
        """Each running request has got so many tokens; those with none to go leave."""
        running = self._to_go - tokens > 0
        self._to_go, self._context = (self._to_go - tokens)[running], (self._context + tokens)[running]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds of a run, those of an oracle on the same steps, and how it got there."""

    seconds: float
    oracle_s: float
    switches: int
    speculated: float

    @property
    def regret(self) -> float:
        """Time lost against the oracle, over its time."""
        return self.seconds / self.oracle_s - 1.0


def run_toggle(
    truth: LatencyModel,
    decide: Callable[[View], Decision],
    accepted: float,
    gamma: int = 7,
    rollout: Rollout | None = None,
    switch_cost_s: float = 0.0,
    noise: float = 0.03,
    online: OnlineRoofline | None = None,
) -> Outcome:
    """Let a toggle run a rollout with L tokens a cycle. The oracle takes the faster mode at each step, for free."""
    engine = Engine(rollout or Rollout())
    random = np.random.default_rng(1)
    seconds = oracle_s = 0.0
    switches = steps = speculated = 0
    for batch, context in engine.steps():
        plain = float(truth.t_target(batch, context))
        draft, verify = float(truth.t_drafter(batch, context, gamma)), float(truth.t_verify(batch, context, gamma))
        decision = decide(View(batch, context, gamma, accepted))
        tokens = accepted if decision.speculate else 1.0
        factor = float(np.exp(random.normal(0.0, noise)))
        seconds += factor * (gamma * draft + verify if decision.speculate else plain)
        seconds += switch_cost_s if decision.switched else 0.0
        oracle_s += factor * tokens * min(plain, (gamma * draft + verify) / accepted)
        if online is not None and (decision.state == "probing" or steps % OBSERVE_EVERY == 0):
            _observe(online, decision, batch, context, gamma, (factor * plain, factor * draft, factor * verify))
        engine.advance(tokens)
        steps += 1
        switches += decision.switched
        speculated += decision.speculate
    return Outcome(seconds, oracle_s, switches, speculated / steps)


def _observe(
    online: OnlineRoofline,
    decision: Decision,
    batch: int,
    context: float,
    gamma: int,
    times: tuple[float, float, float],
) -> None:
    plain, draft, verify = times
    if decision.speculate:
        online.observe(DRAFTER, batch, context, gamma, draft)
        online.observe(VERIFY, batch, context, gamma, verify)
    else:
        online.observe(TARGET, batch, context, 0, plain)


@dataclass(frozen=True, slots=True)
class Trace:
    """Acceptance share of a position, over the rollouts of a run: base + slope * way, less `decay` a position."""

    name: str
    base: float
    slope: float = 0.0
    decay: float = 0.0

    def shares(self, way: float) -> Floats:
        """Shares of positions 1..LONGEST."""
        positions = np.arange(LONGEST)
        return np.clip(self.base + self.slope * way - self.decay * positions, 0.02, 0.995)

    @property
    def longest(self) -> int:
        """The longest draft that it can answer."""
        return LONGEST

    def accepted(self, random: np.random.Generator, way: float, gamma: int, batch: int) -> Floats:
        """Accepted drafts of each request: positions pass one after the other."""
        passed = random.random((batch, gamma)) < self.shares(way)[:gamma]
        return np.asarray(np.cumprod(passed, axis=1).sum(axis=1), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Accepted drafts of an engine's cycles, in their order, each drafted `longest` tokens.

    A cycle of the simulation takes those of cycles near the same way through the record; a shorter draft would have
    had them up to its length.
    """

    name: str
    longest: int
    counts: Floats

    def accepted(self, random: np.random.Generator, way: float, gamma: int, batch: int) -> Floats:
        """Accepted drafts of each request."""
        window = min(RECORDED_WINDOW, self.counts.size)
        first = round(way * (self.counts.size - window))
        drawn = self.counts[first + random.integers(0, window, batch)]
        return np.asarray(np.minimum(drawn, gamma), dtype=np.float64)


def read_recorded(path: Path) -> Recorded:
    """A record of `april bench crossing`: `{"name", "gamma", "accepted": [...]}`.

    Raises:
        UsageError: naming the file and what is wrong in it.
    """
    where = f"acceptance record {path}"
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{where}: {error}") from None
    if not (isinstance(body, dict) and isinstance(gamma := body.get("gamma"), int) and 1 <= gamma <= LONGEST):
        raise UsageError(f"{where}: an object with gamma, from 1 to {LONGEST}, and accepted is expected")
    counts = body.get("accepted")
    if not (isinstance(counts, list) and counts and all(type(n) is int and 0 <= n <= gamma for n in counts)):
        raise UsageError(f"{where}: accepted must be a list of whole numbers from 0 to gamma, {gamma}")
    return Recorded(str(body.get("name", path.stem)), gamma, np.array(counts, dtype=np.float64))


TRACES = (
    Trace("easy", 0.96),
    Trace("medium", 0.88),
    Trace("hard", 0.75),
    Trace("falls with depth", 0.95, decay=0.03),
    Trace("improves", 0.75, slope=0.2),
)
FIXED = (5, 11)
RULES = (*(f"fixed {gamma}" for gamma in FIXED), "ladder", "optimal", "bandit")


def run_gamma(truth: LatencyModel, model: LatencyModel, trace: Trace | Recorded, rule: str, rollouts: int = 6) -> float:
    """Tokens per second of a rule over rollouts that all speculate; the rule knows `model`, `truth` is the engine."""
    ladder, curve = Ladder(), AcceptanceCurve()
    bandit = Bandit(arms=tuple(gamma for gamma in range(1, 1 + trace.longest, 2)))
    optimal = Optimal(model, longest=trace.longest)
    random = np.random.default_rng(2)
    tokens = seconds = 0.0
    for index in range(rollouts):
        engine = Engine(Rollout(requests=24, rounds=1, seed=index))
        gamma, cycle, accepted_sum, drafted_sum, arm = ladder.gamma, 0, 0, 0, [0.0, 0.0]
        for batch, context in engine.steps():
            if rule.startswith("fixed"):
                gamma = int(rule.split()[1])
            elif rule == "optimal":
                gamma = optimal.step(curve, batch, context)
            elif rule == "bandit" and cycle % ARM_CYCLES == 0:
                if arm[1]:
                    bandit.observe(gamma, *arm)
                gamma, arm = bandit.choose(), [0.0, 0.0]
            accepted = trace.accepted(random, index / max(1, rollouts - 1), gamma, batch)
            spent = float(gamma * truth.t_drafter(batch, context, gamma) + truth.t_verify(batch, context, gamma))
            curve.observe(gamma, int(accepted[0]))
            gained = float(np.minimum(accepted + 1, engine.to_go).sum())
            tokens, seconds, cycle = tokens + gained, seconds + spent, cycle + 1
            arm = [arm[0] + float(accepted.mean()) + 1.0, arm[1] + spent]
            accepted_sum, drafted_sum = accepted_sum + int(accepted.sum()), drafted_sum + gamma * batch
            engine.advance(accepted + 1)
        ladder.after_rollout(accepted_sum, drafted_sum)
    return tokens / seconds
