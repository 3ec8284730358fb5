"""Which weights draft next: 8 or 4 bits, by batch and by how often their drafts are accepted. Pure logic.

A cycle of draft length g costs ``g * cost(kind, batch) + 1`` target steps and gives ``1 + a + ... + a^g`` tokens where
a share ``a`` of the drafts is accepted. 8 bits draft first: they nearly always agree. 4 bits are tried when they would
win with :data:`DOUBT` times the rejections of 8 bits, stay while they win by what was measured, and are tried again
after :data:`RETRY` refreshes where they lost: a policy sharpens as it is trained, so that its drafts agree more.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

KINDS = ("w4", "w8")
DOUBT = 4.0
RETRY = 8
MARGIN = 0.02
ENOUGH = 512.0
"""Drafts that make a measurement."""
MEMORY = 8192.0
"""Drafts after which an older one counts 1/e."""
GAMMA = 4
FIXED_SHARE = 0.3
"""Share of a plain step that is not in its linears, before any was timed; a draft step has it too."""
STEPS = 5
"""Timed steps that make a measurement."""
PLAIN = "plain"


class Acceptance:
    """Share of accepted drafts; old ones fade."""

    def __init__(self) -> None:
        self.drafted = 0.0
        self._accepted = 0.0

    def observe(self, accepted: int, drafted: int) -> None:
        """Take the sums of a step."""
        keep = max(0.0, 1.0 - drafted / MEMORY)
        self.drafted = keep * self.drafted + drafted
        self._accepted = keep * self._accepted + accepted

    @property
    def share(self) -> float:
        """0..1; only where something was drafted."""
        return self._accepted / self.drafted

    @property
    def known(self) -> bool:
        """Whether the share is a measurement."""
        return self.drafted >= ENOUGH


class StepCosts:
    """What a draft step of a kind costs, in plain steps of the same batch.

    The engine's own steps say it where both were timed. Before, it is ``fixed + (1 - fixed) linears(kind, batch)``:
    ``linears`` is the ratio of the linears alone, and the fixed share of a plain step is that which the other kind's
    steps show, where they were timed, else :data:`FIXED_SHARE`.
    """

    def __init__(self, linears: Callable[[str, int], float]) -> None:
        self._linears = linears
        self._seconds: dict[tuple[str, int], deque[float]] = {}

    def drafted(self, kind: str, batch: int, seconds: float) -> None:
        """A draft step took so long."""
        self._seconds.setdefault((kind, doubling(batch)), deque(maxlen=STEPS)).append(seconds)

    def plain(self, batch: int, seconds: float) -> None:
        """A plain step took so long."""
        self.drafted(PLAIN, batch, seconds)

    def cost(self, kind: str, batch: int) -> float:
        """Plain steps for one draft step."""
        own = self._measured(kind, batch)
        if own is not None:
            return own
        fixed = FIXED_SHARE
        for other in KINDS:
            measured, linears = self._measured(other, batch), self._linears(other, batch)
            if measured is not None and linears < 1:
                fixed = min(1.0, max(0.0, (measured - linears) / (1 - linears)))
        return fixed + (1 - fixed) * self._linears(kind, batch)

    def _measured(self, kind: str, batch: int) -> float | None:
        drafts, plain = (self._seconds.get((which, doubling(batch)), ()) for which in (kind, PLAIN))
        if min(len(drafts), len(plain)) < STEPS:
            return None
        return statistics.median(drafts) / statistics.median(plain)


def doubling(batch: int) -> int:
    """The batch rounded up to a power of two: costs are kept for each."""
    return 1 << max(0, batch - 1).bit_length()


class KindChooser:
    """``auto``: the kind of the next draft."""

    def __init__(self, cost: Callable[[str, int], float]) -> None:
        self._cost = cost
        self._seen = {kind: Acceptance() for kind in KINDS}
        self._lost_at: int | None = None

    def observe(self, kind: str, accepted: int, drafted: int) -> None:
        """``accepted`` of ``drafted`` tokens of that kind were accepted."""
        if kind in self._seen and drafted > 0:
            self._seen[kind].observe(accepted, drafted)

    def choose(self, now: str, batch: int, refreshes: int) -> str:
        """The kind for a draft at this batch; ``now`` is the kind that drafts at present."""
        if not self._seen["w8"].known:
            return "w8"
        if self._lost_at is not None and refreshes - self._lost_at >= RETRY:
            self._lost_at, self._seen["w4"] = None, Acceptance()
        w8, w4 = self._rate("w8", batch), self._rate("w4", batch)
        if now == "w4" and self._seen["w4"].known and w4 < w8:
            self._lost_at = refreshes
            return "w8"
        if self._lost_at is not None:
            return "w8"
        return "w4" if w4 > w8 * (1 + (MARGIN if now == "w8" else 0)) else "w8"

    def _share(self, kind: str) -> float:
        if self._seen[kind].known:
            return self._seen[kind].share
        return max(0.0, 1.0 - DOUBT * (1.0 - self._seen["w8"].share))

    def _rate(self, kind: str, batch: int) -> float:
        """Tokens per target step."""
        share = self._share(kind)
        return sum(share**i for i in range(GAMMA + 1)) / (GAMMA * self._cost(kind, batch) + 1.0)
