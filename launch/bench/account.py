"""What each mode generated, trained and lost, counted from the calls that the host made, one rule for all modes.

A *call* is one request of the host for one response. The responses that a round returned were trained; what the data
source still held after the last round is in the buffer; every other token that was generated is wasted:

    wasted = generated - trained - in the buffer

Nothing here asks the modes' own books.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from april.errors import AprilError
from april.launch.bench.bound import Speed


@dataclass(frozen=True, slots=True)
class Call:
    """Response ``sample`` had ``before`` tokens and then ``after``, written by policy ``version``; unix seconds."""

    sample: int
    before: int
    after: int
    version: int
    started: float
    ended: float


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one mode. ``trained`` and ``held`` map responses to their tokens; ``held`` is the buffer at its end.

    ``prompt`` is the mean number of tokens of a trained prompt.
    """

    mode: str
    cycle: int
    version: int
    started: float
    ended: float
    prompt: float
    calls: tuple[Call, ...]
    trained: dict[int, int]
    held: dict[int, int]

    @property
    def seconds(self) -> float:
        """Wall time, drain included."""
        return self.ended - self.started

    @property
    def generated(self) -> int:
        """Tokens that this round generated."""
        return sum(call.after - call.before for call in self.calls)


@dataclass(frozen=True, slots=True)
class Tally:
    """One mode's figures over its measured rounds; ``wasted`` over all its rounds. Tokens, seconds and versions.

    ``carried_in`` and ``carried_out`` are tokens in the buffer before and after the measured rounds. ``bound_s`` is the
    least time for the work of these rounds, see ``bound.py``: for what they trained or for what they generated,
    whichever is less, so that neither a buffer filled before nor one that is full at the end makes it better.
    """

    rounds: int
    seconds: float
    trained: int
    generated: int
    wasted: int
    carried_in: int
    carried_out: int
    bound_s: float
    lags: dict[int, int] = field(default_factory=dict)
    round_seconds: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Trained tokens per second."""
        return self.trained / self.seconds

    @property
    def bound_share(self) -> float:
        """The least time over the time taken."""
        return self.bound_s / self.seconds

    @property
    def off_policy_share(self) -> float:
        """The share of trained tokens that an older policy wrote."""
        return 1 - self.lags.get(0, 0) / self.trained if self.trained else 0.0

    @property
    def max_lag(self) -> int:
        """The largest lag of a trained token."""
        return max(self.lags, default=0)


def of_event(event: dict[str, Any]) -> Round:
    """A round as the host's process told it."""
    return Round(
        **{name: event[name] for name in ("mode", "cycle", "version", "started", "ended", "prompt")},
        calls=tuple(Call(*call) for call in event["calls"]),
        trained={int(sample): tokens for sample, tokens in event["trained"]},
        held={int(sample): tokens for sample, tokens in event["held"]},
    )


def tally(rounds: Sequence[Round], warm_up: int, samples: int, speed: Speed) -> Tally:
    """The figures of one mode from all its rounds, in order; the first ``warm_up`` only count for what was wasted.

    Raises:
        AprilError: where a response was trained twice, or with tokens that no call generated.
    """
    measured = rounds[warm_up:]
    _exactly_once(rounds)
    lags = _lags(rounds)
    before = rounds[warm_up - 1].held if warm_up else {}
    trained = sum(sum(this.trained.values()) for this in measured)
    groups = sum(len(this.trained) for this in measured) / samples
    prefill = speed.prefill * sum(this.prompt * len(this.trained) for this in measured) / samples
    work = min(
        sum(speed.tokens(round(this.prompt), 0, tokens) for this in measured for tokens in this.trained.values()),
        sum(speed.tokens(round(this.prompt), call.before, call.after) for this in measured for call in this.calls),
    )
    generated = sum(this.generated for this in rounds)
    all_trained = sum(sum(this.trained.values()) for this in rounds)
    return Tally(
        rounds=len(measured),
        seconds=sum(this.seconds for this in measured),
        trained=trained,
        generated=sum(this.generated for this in measured),
        wasted=generated - all_trained - sum(rounds[-1].held.values()),
        carried_in=sum(before.values()),
        carried_out=sum(measured[-1].held.values()),
        bound_s=work + (prefill if groups else 0.0),
        lags=dict(sorted(sum((lags[this.cycle] for this in measured), Counter[int]()).items())),
        round_seconds=tuple(this.seconds for this in measured),
    )


def _exactly_once(rounds: Iterable[Round]) -> None:
    seen: set[int] = set()
    for this in rounds:
        if again := seen & this.trained.keys():
            raise AprilError(f"{this.mode}, round {this.cycle}: response {min(again)} was trained twice")
        seen |= this.trained.keys()


def _lags(rounds: Sequence[Round]) -> dict[int, Counter[int]]:
    """For each cycle, trained tokens by lag."""
    legs: dict[int, list[tuple[int, int]]] = {}
    found = {}
    for this in rounds:
        for call in this.calls:
            kept = _cut(legs.get(call.sample, []), call.before)
            legs[call.sample] = [*kept, (call.version, call.after - call.before)]
        counts: Counter[int] = Counter()
        for sample, tokens in this.trained.items():
            written = legs.pop(sample, [])
            if sum(length for _, length in written) != tokens:
                raise AprilError(
                    f"{this.mode}, round {this.cycle}: response {sample} was trained with {tokens} tokens, of which "
                    f"{sum(length for _, length in written)} were generated"
                )
            for version, length in written:
                counts[max(0, this.version - version)] += length
        found[this.cycle] = Counter({lag: tokens for lag, tokens in counts.items() if tokens})
    return found


def _cut(legs: list[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """The legs up to ``length`` tokens: a response that starts again loses what it had."""
    kept, left = [], length
    for version, tokens in legs:
        if left > 0:
            kept.append((version, min(tokens, left)))
            left -= tokens
    return kept
