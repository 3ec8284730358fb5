"""The nouns of active partial rollouts. Pure: knows no host, no engine, no clock.

A *group* holds the trajectories of one prompt. A *trajectory* is one response, grown over one or more *legs*; a leg is
what one request generated under one policy version. A round takes groups, and each of them ends trained, recycled or
dropped, exactly once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any


class TrajectoryState(enum.Enum):
    """Where a trajectory stands. ``FAILED``, a host's soft failure, has ended: it counts when it has a reward."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    TRUNCATED = "truncated"
    PARTIAL = "partial"
    FAILED = "failed"
    EXPIRED = "expired"


class Interrupt(enum.Enum):
    """What a round's end does to the requests that still run.

    ``ABORT``: they return what they have. ``RETRACT``, ``INPLACE``: they stay in the paused engines over the weight
    update and go on after it, with their KV computed anew or as it is.
    """

    ABORT = "abort"
    RETRACT = "retract"
    INPLACE = "inplace"

    @property
    def stays(self) -> bool:
        """Whether requests outlive the round."""
        return self is not Interrupt.ABORT


ENDED = frozenset({TrajectoryState.FINISHED, TrajectoryState.TRUNCATED, TrajectoryState.FAILED})

# A trajectory that ended may still expire: a surplus group that waited in the buffer beyond the staleness cap.
MOVES: dict[TrajectoryState, frozenset[TrajectoryState]] = {
    TrajectoryState.PENDING: frozenset({TrajectoryState.RUNNING}),
    TrajectoryState.RUNNING: ENDED | {TrajectoryState.PARTIAL},
    TrajectoryState.PARTIAL: frozenset({TrajectoryState.RUNNING, TrajectoryState.EXPIRED}),
    TrajectoryState.FINISHED: frozenset({TrajectoryState.EXPIRED}),
    TrajectoryState.TRUNCATED: frozenset({TrajectoryState.EXPIRED}),
    TrajectoryState.FAILED: frozenset({TrajectoryState.EXPIRED}),
    TrajectoryState.EXPIRED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Leg:
    """Tokens ``[start, start + length)`` of a response, generated under ``policy_version`` in round ``rollout_id``."""

    policy_version: int
    start: int
    length: int
    rollout_id: int

    @property
    def end(self) -> int:
        """One past the last token."""
        return self.start + self.length

    def to_dict(self) -> dict[str, int]:
        """Plain numbers, as kept in a sample's metadata."""
        return {
            "policy_version": self.policy_version,
            "start": self.start,
            "length": self.length,
            "rollout_id": self.rollout_id,
        }

    @classmethod
    def from_dict(cls, data: dict[str, int]) -> Leg:
        """Inverse of ``to_dict``."""
        return cls(data["policy_version"], data["start"], data["length"], data["rollout_id"])


def legs_fault(legs: Iterable[Leg], length: int) -> str | None:
    """Why these legs do not tile a response of ``length`` tokens, or None where they do."""
    position = 0
    for leg in legs:
        if leg.length <= 0:
            return f"a leg at {leg.start} has {leg.length} tokens"
        if leg.start != position:
            return f"a leg starts at {leg.start}, the one before ends at {position}"
        position = leg.end
    return None if position == length else f"the legs cover {position} of {length} tokens"


def versions_of(legs: Iterable[Leg]) -> list[int]:
    """The policy version of each token, in order."""
    return [leg.policy_version for leg in legs for _ in range(leg.length)]


@dataclass(slots=True)
class Trajectory:
    """One member of a group: the host's object and what we know of it.

    ``payload`` is the host's sample, or a list of samples where a custom generate function made several of one
    (fan-out); ``length`` counts response tokens over all of them. ``discarded`` are tokens that the last leg threw away
    (a custom generate function that started over). ``started`` and ``ended`` frame the last leg, in unix seconds.
    """

    payload: Any
    state: TrajectoryState = TrajectoryState.PENDING
    legs: tuple[Leg, ...] = ()
    length: int = 0
    rewarded: bool = False
    discarded: int = 0
    started: float | None = None
    ended: float | None = None

    def move(self, state: TrajectoryState) -> None:
        """Go to ``state``; an illegal move is a bug and asserts."""
        assert state in MOVES[self.state], f"illegal move {self.state.value} -> {state.value}"
        self.state = state

    @property
    def has_ended(self) -> bool:
        """Whether no more tokens will come."""
        return self.state in ENDED

    @property
    def finished(self) -> bool:
        """Whether it may be trained: it has ended and has a reward."""
        return self.has_ended and self.rewarded

    def generated_in(self, rollout_id: int) -> int:
        """Tokens that round ``rollout_id`` generated."""
        return sum(leg.length for leg in self.legs if leg.rollout_id == rollout_id)


@dataclass(slots=True)
class Group:
    """All trajectories of one prompt, trained together. ``index`` is unique over a run.

    Where a round ends by samples a group may be trained in parts: ``earlier`` members of it were trained before.
    ``leg_tokens`` is what each member may generate in this round (None: no limit), ``priority`` its rank for engines.
    ``expected`` is the mean length of its prompt's earlier responses. ``since``: it is in the engines since that policy
    version, and what it has there is not known yet; its tokens may be as old.
    """

    index: int
    members: list[Trajectory]
    # Submissions in this round that brought no token: an engine that only ever aborts must not spin.
    stalls: int = field(default=0, compare=False)
    earlier: int = field(default=0, compare=False)
    leg_tokens: int | None = field(default=None, compare=False)
    priority: int | None = field(default=None, compare=False)
    expected: float | None = field(default=None, compare=False)
    since: int | None = field(default=None, compare=False)

    @property
    def legs(self) -> Iterator[Leg]:
        """Every leg of every member."""
        return (leg for member in self.members for leg in member.legs)

    @property
    def tokens(self) -> int:
        """Response tokens held."""
        return sum(member.length for member in self.members)

    @property
    def has_ended(self) -> bool:
        """Whether every member has."""
        return all(member.has_ended for member in self.members)

    @property
    def finished(self) -> bool:
        """Whether it may be trained: every member ended and has a reward."""
        return all(member.finished for member in self.members)

    @property
    def ended(self) -> int:
        """Members that may be trained."""
        return sum(member.finished for member in self.members)

    def joined(self, part: Group | None) -> Group:
        """With the members of ``part``, which had been taken out of it."""
        if part is None:
            return self
        return replace(self, members=[*part.members, *self.members], earlier=part.earlier)

    @property
    def fresh(self) -> bool:
        """Whether nothing was generated for it yet, as far as can be known."""
        return self.since is None and self.tokens == 0 and not any(member.has_ended for member in self.members)

    @property
    def partials(self) -> int:
        """Responses that will go on from where they stopped."""
        return sum(1 for member in self.members if not member.has_ended and member.length > 0)

    def resumed_in(self, rollout_id: int) -> int:
        """Responses that went on in round ``rollout_id`` from where they had stopped."""
        resumed = (any(leg.rollout_id == rollout_id and leg.start for leg in member.legs) for member in self.members)
        return sum(resumed)

    @property
    def oldest_version(self) -> int | None:
        """The least policy version of any token, as far as it is known, or None without tokens."""
        versions = [leg.policy_version for leg in self.legs] + ([] if self.since is None else [self.since])
        return min(versions, default=None)

    def lag(self, policy_version: int) -> int:
        """How many versions its oldest token is behind; 0 without tokens."""
        oldest = self.oldest_version
        return 0 if oldest is None else max(0, policy_version - oldest)

    def generated_in(self, rollout_id: int) -> int:
        """Tokens that round ``rollout_id`` generated."""
        return sum(member.generated_in(rollout_id) for member in self.members)


def priority(group: Group, max_response_len: int) -> tuple[int, float, float, int]:
    """Sort key of admission: finished first; then oldest policy version, then least still to come; new prompts last.

    What is still to come of an unfinished member is what its prompt's earlier responses had (``expected``) less what it
    has; where that is not known, or it is longer already, the rest of its token budget.
    """
    oldest = group.oldest_version
    rest = sum(
        _rest(member.length, group.expected, max_response_len) for member in group.members if not member.has_ended
    )
    return (0 if group.finished else 1, float("inf") if oldest is None else oldest, rest, group.index)


def _rest(length: int, expected: float | None, max_response_len: int) -> float:
    longest = max_response_len if expected is None or expected <= length else min(expected, max_response_len)
    return max(0, longest - length)


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What one round is to do. ``target`` finished groups end it; up to ``over_sampling`` are taken at once.

    ``drain_deadline`` is in seconds. Without ``keep_partials`` what is not trained starts again from its prompt.
    ``target_samples``: the round ends at so many finished samples instead; a group of which at least ``min_group``
    members have finished, those trained before included, is then trained on them. ``leg_tokens``: no response generates
    more in this round; it is parked. ``prioritise``: groups carry a rank for engines that schedule by priority.
    ``interrupt``: what becomes of requests that run when the round ends.
    ``max_rejected``: so many rejections in a row, with nothing kept, and the round fails instead of going on for ever.
    """

    rollout_id: int
    policy_version: int
    target: int
    over_sampling: int
    max_response_len: int
    drain_deadline: float = 120.0
    keep_partials: bool = True
    max_rejected: int = 1000
    target_samples: int | None = None
    min_group: int = 1
    leg_tokens: int | None = None
    prioritise: bool = False
    interrupt: Interrupt = Interrupt.ABORT


@dataclass(frozen=True, slots=True)
class Dropped:
    """A group that is neither trained nor recycled, and why."""

    group: Group
    reason: str


@dataclass(frozen=True, slots=True)
class Span:
    """One leg on the timeline; times in unix seconds."""

    group: int
    sample: int
    start: float
    end: float
    tokens: int
    outcome: str

    def to_dict(self) -> dict[str, Any]:
        """As emitted."""
        return {
            "group": self.group,
            "sample": self.sample,
            "start": self.start,
            "end": self.end,
            "tokens": self.tokens,
            "outcome": self.outcome,
        }


@dataclass(slots=True)
class RoundResult:
    """What became of every group of a round, and what it cost. Token counts are response tokens.

    ``carried`` are groups that stayed in the engines, as far as they were known; what they generate is counted in the
    round that gets it. ``stale_kv_tokens`` is KV of older weights that the engines went on with at its start.
    ``resumed`` counts responses, ``submitted``, ``parked`` and ``expired`` groups. ``drain_errors`` tells of groups
    whose task failed or did not end while draining; they were recycled with what they had. ``load_after`` is what the
    engines then reported as their requests: None where nothing had to be drained or one of them did not say.
    """

    plan: RoundPlan
    trained: list[Group] = field(default_factory=list)
    recycled: list[Group] = field(default_factory=list)
    surplus: list[Group] = field(default_factory=list)
    carried: list[Group] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    submitted: int = 0
    resumed: int = 0
    expired: int = 0
    parked: int = 0
    wasted_tokens: int = 0
    generated_tokens: int = 0
    stale_kv_tokens: int = 0
    drain_seconds: float = 0.0
    drain_errors: list[str] = field(default_factory=list)
    load_after: int | None = None
    spans: list[Span] = field(default_factory=list)

    @property
    def trained_tokens(self) -> int:
        """Response tokens handed to the trainer."""
        return sum(group.tokens for group in self.trained)

    @property
    def recycled_tokens(self) -> int:
        """Response tokens that went to the buffer."""
        return sum(group.tokens for group in (*self.recycled, *self.surplus, *self.carried))

    @property
    def off_policy_tokens(self) -> int:
        """Trained tokens of an older version than the round's."""
        legs = (leg for group in self.trained for leg in group.legs)
        return sum(leg.length for leg in legs if leg.policy_version < self.plan.policy_version)

    @property
    def max_lag(self) -> int:
        """The largest lag of a trained token."""
        return max((group.lag(self.plan.policy_version) for group in self.trained), default=0)
