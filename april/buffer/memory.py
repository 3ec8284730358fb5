"""A buffer in memory."""

from __future__ import annotations

from collections.abc import Sequence

from april.core import Group, priority
from april.errors import AprilError


class MemoryBuffer:
    """Implements ``april.buffer.base.Buffer``. ``max_response_len`` (tokens) goes into the order of priority."""

    def __init__(self, max_response_len: int) -> None:
        self._max_response_len = max_response_len
        self._groups: dict[int, Group] = {}

    def put(self, groups: Sequence[Group]) -> None:
        """See ``Buffer``."""
        for group in groups:
            if group.index in self._groups:
                raise AprilError(f"group {group.index} is in the buffer already")
            self._groups[group.index] = group

    def take(self, count: int) -> list[Group]:
        """See ``Buffer``."""
        taken = self.snapshot()[:count]
        for group in taken:
            del self._groups[group.index]
        return taken

    def __len__(self) -> int:
        return len(self._groups)

    def snapshot(self) -> list[Group]:
        """See ``Buffer``."""
        return sorted(self._groups.values(), key=lambda group: priority(group, self._max_response_len))

    def restore(self, groups: Sequence[Group]) -> None:
        """See ``Buffer``."""
        self._groups = {}
        self.put(groups)
