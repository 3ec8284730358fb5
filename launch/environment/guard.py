"""One set-up at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import SetupError


@contextmanager
def only_one(path: Path) -> Iterator[int]:
    """Hold the lock file ``path``; yields its descriptor, which children inherit so that the lock lives as long as
    they do.

    Raises SetupError when another set-up holds it, and PermissionError when it cannot be written.
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
        yield descriptor
    finally:
        os.close(descriptor)
