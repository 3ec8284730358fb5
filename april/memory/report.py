"""What a run's memory saver did, in the run directory: an event for each move, and memory by tag as metrics."""

from __future__ import annotations

import os
import time
from pathlib import Path

from april.memory.stats import Stats, TagStats
from april.telemetry.events import append, emit
from april.telemetry.metrics import FILE as METRICS

STEP = "memory/operations"
PAGE = os.sysconf("SC_PAGE_SIZE")


def moved(operation: str, tag: str | None, moved_bytes: int, seconds: float, stats: Stats) -> None:
    """Tell of a pause, a resume or a compaction. Writes nothing outside a run.

    The event ``memory`` has bytes moved and the process's resident bytes; the row of ``metrics.jsonl`` has each tag's
    counters at that moment, counted by the saver's operations.
    """
    emit(
        "memory",
        operation=operation,
        tag=tag,
        pid=os.getpid(),
        bytes=moved_bytes,
        seconds=round(seconds, 6),
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
