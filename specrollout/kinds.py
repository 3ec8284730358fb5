"""Which weights draft next: 8 or 4 bits, by batch and by how often their drafts are accepted. Pure logic.

A cycle of draft length g costs ``g * cost(kind, batch) + 1`` target steps and gives ``1 + a + ... + a^g`` tokens where
a share ``a`` of the drafts is accepted. 8 bits draft first: they nearly always agree. 4 bits are tried when they would
win with :data:`DOUBT` times the rejections of 8 bits, stay while they win by what was measured, and are tried again
after :data:`RETRY` refreshes where they lost: a policy sharpens as it is trained, so that its drafts agree more.
"""

from __future__ import annotations

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
