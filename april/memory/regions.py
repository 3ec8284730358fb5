"""Which region a thread is in."""

from __future__ import annotations

import threading

from april.memory.kinds import Keep

Region = tuple[str, Keep]
"""A tag, and where contents wait while it is paused."""


class Regions(threading.local):
    """This thread's regions, the innermost last; None where tracking is switched off."""

    def __init__(self) -> None:
        self.stack: list[Region | None] = []

    @property
    def current(self) -> Region | None:
        """The innermost, or None."""
        return self.stack[-1] if self.stack else None
