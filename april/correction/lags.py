"""How the lag of each token reaches the loss: inside the one object that the hosts pass on as it is.

Of a sample, slime and miles give their TIS hook log probabilities, loss mask and lengths, and nothing else; the first
two become tensors on the way. The response's length stays the Python integer that the sample had, through conversion,
split by data parallel rank, Ray's object store and micro-batches. So the length that we hand over is an integer that
also knows its lags. For all else it is that integer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from april.core import Leg
from april.errors import AprilError


class LaggedLength(int):
    """The length of a response, in tokens; ``runs`` are (lag, tokens) in the order of the response."""

    runs: tuple[tuple[int, int], ...]

    def __new__(cls, runs: Iterable[tuple[int, int]]) -> LaggedLength:
        """The length is the sum of the runs' tokens."""
        kept = tuple((int(lag), int(count)) for lag, count in runs)
        assert all(lag >= 0 and count > 0 for lag, count in kept), kept
        length = super().__new__(cls, sum(count for _, count in kept))
        length.runs = kept
        return length

    @classmethod
    def of(cls, legs: Iterable[Leg], policy_version: int) -> LaggedLength:
        """The length of the response that ``legs`` tile, trained at ``policy_version``.

        A token may be newer than the round's version (weights that came while it ran): its lag is 0.
        """
        return cls((max(0, policy_version - leg.policy_version), leg.length) for leg in legs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.runs,))

    # An integer is its own copy.
    def __copy__(self) -> LaggedLength:
        return self

    def __deepcopy__(self, memo: Any) -> LaggedLength:
        return self

    @property
    def lags(self) -> list[int]:
        """The lag of each token."""
        return [lag for lag, count in self.runs for _ in range(count)]


def runs_of(length: int) -> tuple[tuple[int, int], ...]:
    """(lag, tokens) of a response's length. Raises AprilError where it has none: then nothing may be corrected."""
    if isinstance(length, LaggedLength):
        return length.runs
    raise AprilError(
        f"a response of {length} tokens reached the loss without its policy versions: --april-correction needs samples "
        "from april's rollout function, and hooks that leave response_length as it is"
    )
