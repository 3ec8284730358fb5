"""What a caller is told when memory could not be moved."""

from __future__ import annotations

from dataclasses import dataclass

from april.errors import AprilError

AFTER = {
    "resume": "; nothing of it was resumed",
    "compact": "; the rest was compacted",
    "allocate": "; nothing was taken",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """As the core reports it. ``call`` is the runtime's function, ``code`` what it answered; sizes in bytes."""

    operation: str
    tag: str
    call: str
    text: str
    code: int
    wanted: int
    free: int
    out_of_memory: bool

    def line(self) -> str:
        """All of it in one line."""
        about = f"{self.operation}({self.tag})" if self.tag else self.operation
        sizes = f": {self.wanted:,} bytes wanted, {self.free:,} free" if self.wanted else ""
        return f"memory {about}: {self.call}: {self.text} ({self.code}){sizes}{AFTER.get(self.operation, '')}"


class MemoryFault(AprilError):
    """A runtime refused. What was asked for did not happen, and everything else is usable; see docs/memory.md."""

    def __init__(self, cause: Cause, note: str = "") -> None:
        super().__init__(cause.line() + note)
        self.cause = cause
