"""What a run's memory saver did, in the run directory: an event for each move, and memory by tag as metrics."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from april.memory.stats import Stats, TagStats
from april.telemetry.events import append, emit
from april.telemetry.metrics import FILE as METRICS

STEP = "memory/operations"
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Move:
    """A pause, a resume or a compaction; ``tag`` is None for all, ``resident`` the process's bytes before it."""

    operation: str
    tag: str | None
    bytes: int
    seconds: float
    resident: int


def moved(move: Move, stats: Stats) -> None:
    """Tell of a move that has just been made. Writes nothing outside a run.

    The event ``memory`` has what was moved and the process's resident bytes before and after; the row of
    ``metrics.jsonl`` has each tag's counters at that moment, counted by the saver's operations.
    """
    emit(
        "memory",
        operation=move.operation,
        tag=move.tag,
        pid=os.getpid(),
        bytes=move.bytes,
        seconds=round(move.seconds, 6),
        resident_before=move.resident,
        resident=resident(),
        device_free=stats.device_free,
    )
    row = {name: value for each, counters in stats.tags.items() for name, value in metrics(each, counters).items()}
    append(METRICS, {"time": time.time(), "step_key": STEP, "step": stats.operations, "pid": os.getpid(), **row})


def metrics(tag: str, counters: TagStats) -> dict[str, float]:
    """A tag's metrics; sizes in bytes."""
    return {
        f"memory/{tag}/reserved": counters.reserved,
        f"memory/{tag}/allocated": counters.allocated,
        f"memory/{tag}/largest_free": counters.largest_free,
        f"memory/{tag}/paused": counters.paused,
        f"memory/{tag}/backup": counters.backup,
        f"memory/{tag}/fragmentation": counters.fragmentation,
    }


def resident() -> int:
    """Bytes of this process in memory, what it shares with others included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
