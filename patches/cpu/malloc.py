"""What a device's ``empty_cache`` is on a CPU: malloc's unused memory goes back to the system."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


def give_back() -> None:
    """Returns what malloc holds unused; does nothing where the C library is not glibc."""
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
