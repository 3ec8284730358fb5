"""Ends a process whose runtime hangs: a call that never returns can be neither interrupted nor waited for.

MI300X is reported to hang in the driver (cases 46 and 50). A hang holds up every other worker; an end is noticed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator

DEFAULT_S = 300.0
EXIT_CODE = 70


def seconds() -> float:
    """``APRIL_MEMORY_HANG_S``, 0 for no watch at all."""
    return float(os.environ.get("APRIL_MEMORY_HANG_S", DEFAULT_S))


@contextlib.contextmanager
def watched(what: str, limit_s: float, running: Callable[[], str | None]) -> Iterator[None]:
    """Ends the process with one line and all stacks when the body takes longer than ``limit_s`` (0: never)."""
    if not limit_s:
        yield
        return

    def end() -> None:
        where = f"in {running()}" if running() else "outside of the runtime"
        remedy = "see docs/memory.md; APRIL_MEMORY_HANG_S sets the limit"
        print(f"april: error: memory {what} hangs {where} for {limit_s:g} s: {remedy}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.stderr)
        os._exit(EXIT_CODE)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
