"""Streams and events of a device that has none: everything has happened when it returns."""

from __future__ import annotations

from typing import Any


class CpuEvent:
    """An event that is always complete."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is queued."""

    def wait(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Always complete."""
        return True

    def elapsed_time(self, end: CpuEvent) -> float:
        """Milliseconds to ``end``: not measured, 0."""
        return 0.0


class CpuStream(CpuEvent):
    """The one stream of a CPU."""

    def wait_stream(self, *args: Any) -> None:
        """Nothing is queued elsewhere."""

    def wait_event(self, *args: Any) -> None:
        """Every event is complete."""
