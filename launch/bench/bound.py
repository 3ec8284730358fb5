"""The packing bound: the least time that any schedule could take, by the measured speed of the server.

Symbols: a decode step of ``b`` responses that hold ``S`` tokens together takes ``t(b, S) = a + c b + k S`` seconds, at
most ``K`` run at once, and prefill takes ``p`` seconds a token. In a step of ``b <= K`` responses, one token's share of
the step is ``a/b + c + k s >= a/K + c + k s``, with ``s`` its own context. So whatever the order, tokens ``T`` take at
least

    bound(T) = sum over T of (a/K + c + k s)  +  p * (prompt tokens, once a group)

The first token of a response comes with its prefill and is not in the sum. The bound knows no rounds: a schedule that
has to end each round with all its responses (sync) can only be slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from april.errors import AprilError

ROUNDS_OF_FIT = 4


@dataclass(frozen=True, slots=True)
class Stair:
    """``steps`` decode steps of ``batch`` responses took ``seconds``; ``context`` is the mean over these steps of the
    tokens that all of them hold together.
    """

    batch: int
    steps: int
    context: float
    seconds: float

    @property
    def step_s(self) -> float:
        """Seconds a step."""
        return self.seconds / self.steps


@dataclass(frozen=True, slots=True)
class Speed:
    """See the module: ``fixed`` is a (s), ``per_response`` c (s), ``per_token`` k (s), ``prefill`` p (s a token),
    ``most`` K.
    """

    fixed: float
    per_response: float
    per_token: float
    prefill: float
    most: int

    def step(self, batch: int, context: float) -> float:
        """Seconds of a decode step."""
        return self.fixed + self.per_response * batch + self.per_token * context

    def tokens(self, prompt: int, first: int, last: int) -> float:
        """The least seconds for tokens ``first`` to ``last - 1`` (counted from 0) of a response."""
        decoded = range(max(1, first), last)
        contexts = (2 * prompt + decoded.start + decoded.stop - 1) / 2 * len(decoded) if decoded else 0.0
        return (self.fixed / self.most + self.per_response) * len(decoded) + self.per_token * contexts


def fit(stairs: Sequence[Stair], prefill: float, most: int) -> Speed:
    """The speed by least squares of errors relative to the fit: the mean speed, slow moments counted as they were.

    Coefficients that would be negative are 0. (Relative to the measured times instead, slow moments would count less.)

    Raises:
        AprilError: where the stairs do not determine it.
    """
    import numpy as np

    if len({stair.batch for stair in stairs}) < 2:
        raise AprilError("the step time was measured at fewer than two batch sizes")
    rows = np.array([[1.0, stair.batch, stair.context] for stair in stairs])
    times = np.array([stair.step_s for stair in stairs])
    weights = np.ones(len(times))
    for _ in range(ROUNDS_OF_FIT):
        found = _not_negative(rows * weights[:, None], times * weights)
        weights = 1 / (rows @ found)
    return Speed(float(found[0]), float(found[1]), float(found[2]), prefill, most)


def _not_negative(rows: Any, times: Any) -> Any:
    """Least squares; while a coefficient is negative, the one that takes away most is left out."""
    import numpy as np

    free, found = list(range(rows.shape[1])), np.zeros(rows.shape[1])
    while free:
        solved = np.linalg.lstsq(rows[:, free], times, rcond=None)[0]
        if (solved >= 0).all():
            found[free] = solved
            break
        free.pop(int(np.argmin(solved * rows[:, free].mean(axis=0))))
    return found


def error(speed: Speed, stairs: Iterable[Stair]) -> float:
    """The mean absolute relative error of the fit."""
    parts = [abs(speed.step(stair.batch, stair.context) / stair.step_s - 1) for stair in stairs]
    return sum(parts) / len(parts)
