"""One set-up at a time, and nothing of an earlier one that goes on behind it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import SetupError

MARK = "APRIL_SETUP_OF"
"""Environment variable of every program that a set-up starts: the checkout that it works on."""

PATIENCE = 10.0
"""Seconds in which a killed program must be gone."""


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``. Raises SetupError when another set-up holds it.

    The lock ends with this process, however it ends; what it started may live on, see ``end_leftovers``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode().strip()
            raise SetupError(
                f"another set-up is running in this folder (process {holder}): wait for it, then run it again"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def leftovers(checkout: Path) -> list[int]:
    """Processes that a set-up of ``checkout`` started and that are still there."""
    mark = f"{MARK}={checkout}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end_leftovers(checkout: Path) -> int:
    """End what a killed set-up left running, so that two installers never write at once; returns how many there were.

    To be called with the lock held. Raises SetupError when one does not end.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + PATIENCE
    while True:
        running = leftovers(checkout)
        if not running:
            return len(ended)
        if time.monotonic() > deadline:
            raise SetupError(
                f"a program of an interrupted set-up does not end (process {running[0]}): end it, then retry"
            )
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        ended.update(running)
        time.sleep(0.05)
