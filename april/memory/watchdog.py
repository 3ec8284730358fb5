"""Ends a process whose runtime hangs: a call that never returns can be neither interrupted nor waited for.

MI300X is reported to hang in the driver (cases 46 and 50). A hang holds up every other worker; an end is noticed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Protocol

DEFAULT_S = 300.0
EXIT_CODE = 70


def seconds() -> float:
    """``APRIL_MEMORY_HANG_S``, 0 for no watch at all."""
    return float(os.environ.get("APRIL_MEMORY_HANG_S", DEFAULT_S))


class Watched(Protocol):
    """Who does the work: its ``running`` call, and how many it has ``begun``."""

    def running(self) -> str | None:
        """The call that runs now."""

    def begun(self) -> int:
        """Calls so far: a large copy is many of them."""


@contextlib.contextmanager
def watched(what: str, limit_s: float, work: Watched) -> Iterator[None]:
    """Ends the process with one line and all stacks when no call begins or ends for ``limit_s`` (0: never)."""
    done = threading.Event()

    def watch() -> None:
        last, since = work.begun(), time.monotonic()
        while not done.wait(limit_s / 10):
            if work.begun() != last:
                last, since = work.begun(), time.monotonic()
            elif time.monotonic() - since >= limit_s:
                _end(what, limit_s, work.running())

    watcher = threading.Thread(target=watch, daemon=True, name="april-memory-watchdog")
    if limit_s:
        watcher.start()
    try:
        yield
    finally:
        done.set()
        if limit_s:
            watcher.join()  # it must not ask a saver that is closed next


def _end(what: str, limit_s: float, call: str | None) -> None:
    where = f"in {call}" if call else "outside of the runtime"
    remedy = "see docs/memory.md; APRIL_MEMORY_HANG_S sets the limit"
    print(f"april: error: memory {what} hangs {where} for {limit_s:g} s: {remedy}", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(file=sys.stderr)
    os._exit(EXIT_CODE)
