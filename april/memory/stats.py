"""What a saver holds, in numbers. All sizes in bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TagStats:
    """One tag, or all of them together."""

    reserved: int
    """Memory set aside for the tag, paused or not; ``holes`` are not part of it."""
    allocated: int
    """What callers hold of it."""
    largest_free: int
    """The largest block that can be had without taking more memory."""
    paused: int
    """What is given back to the device now."""
    backup: int
    """What waits on the host."""
    stuck: int
    """What should have been given back, and the runtime did not take."""
    holes: int
    """Addresses without memory."""
    segments: int
    extents: int
    blocks: int
    dirty: bool
    """Resumed without its contents, and not written since, as far as anyone said."""

    @property
    def fragmentation(self) -> float:
        """The part of the reserved memory that nobody uses, 0 to 1."""
        return 1 - self.allocated / self.reserved if self.reserved else 0.0


@dataclass(frozen=True, slots=True)
class Stats:
    """A saver at one moment."""

    total: TagStats
    tags: dict[str, TagStats]
    device_free: int
    device_total: int
    operations: int
    compactions: int
    faults: int
    """Refusals that failed no operation, such as of a backup that could not be unpinned."""
    last_fault: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        made = asdict(self)
        made["total"]["fragmentation"] = self.total.fragmentation
        for tag, row in self.tags.items():
            made["tags"][tag]["fragmentation"] = row.fragmentation
        return made
