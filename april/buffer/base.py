"""What a buffer of groups does, whatever holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from april.core import Group


class Buffer(Protocol):
    """Groups that wait for a later round. Each one put is taken once."""

    def put(self, groups: Sequence[Group]) -> None:
        """Keep these groups. Raises AprilError for one that is held already."""
        ...

    def take(self, count: int) -> list[Group]:
        """Remove and return up to ``count`` groups, in order of ``april.core.priority``."""
        ...

    def __len__(self) -> int:
        """Groups held."""
        ...

    def snapshot(self) -> list[Group]:
        """All groups held, in order of priority; they stay."""
        ...

    def restore(self, groups: Sequence[Group]) -> None:
        """Hold exactly these groups."""
        ...
