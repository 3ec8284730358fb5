"""The core's C interface, in Python: one method for each function, failures as MemoryFault. Sizes in bytes."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

from april.errors import AprilError
from april.memory import build
from april.memory.errors import Cause, MemoryFault
from april.memory.kinds import Keep


class _Error(ctypes.Structure):
    _fields_ = [
        ("operation", c_char * 16),
        ("tag", c_char * 64),
        ("call", c_char * 64),
        ("text", c_char * 256),
        ("code", c_int64),
        ("wanted", c_uint64),
        ("free", c_uint64),
        ("out_of_memory", c_int32),
    ]

    def fault(self) -> MemoryFault:
        names = ("operation", "tag", "call", "text")
        operation, tag, call, text = (getattr(self, name).decode(errors="replace") for name in names)
        out = bool(self.out_of_memory)
        return MemoryFault(Cause(operation, tag, call, text, self.code, self.wanted, self.free, out))


class Moved(ctypes.Structure):
    """What pause, resume or compact moved, and the device's free bytes before and after."""

    _fields_ = [(name, c_uint64) for name in ("bytes", "segments", "free_before", "free_after")]
    bytes: int
    segments: int
    free_before: int
    free_after: int


COUNTERS = (
    *("reserved", "allocated", "largest_free", "paused", "backup", "stuck", "holes"),
    *("segments", "extents", "blocks", "dirty", "operations", "faults"),
)


class Counters(ctypes.Structure):
    """The core's Stats; saver.h says what each is."""

    _fields_ = [(name, c_uint64) for name in COUNTERS]


@functools.cache
def load() -> ctypes.CDLL:
    """The compiled core with its signatures; raises AprilError where it cannot be compiled or loaded."""
    library = ctypes.CDLL(str(build.core()))
    error, moved, size = POINTER(_Error), POINTER(Moved), POINTER(c_size_t)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "open": (c_void_p, [c_char_p, c_char_p, c_int, c_size_t, c_size_t, c_size_t, c_char_p, error]),
        "close": (None, [c_void_p]),
        "allocate": (c_int, [c_void_p, c_char_p, c_int, c_size_t, POINTER(c_void_p), error]),
        "free": (c_int, [c_void_p, c_void_p, error]),
        "pause": (c_int, [c_void_p, c_char_p, moved, error]),
        "resume": (c_int, [c_void_p, c_char_p, moved, error]),
        "compact": (c_int, [c_void_p, moved, error]),
        "info": (c_int, [c_void_p, size, size, error]),
        "copy": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, c_int, error]),
        "backup": (c_void_p, [c_void_p, c_void_p, c_size_t]),
        "state": (c_int, [c_void_p, c_void_p]),
        "stats": (None, [c_void_p, c_char_p, POINTER(Counters)]),
        "tags": (c_size_t, [c_void_p, c_char_p, c_size_t]),
        "clean": (None, [c_void_p, c_char_p]),
        "set": (None, [c_void_p, c_size_t, c_int]),
        "granularity": (c_size_t, [c_void_p]),
        "running": (c_char_p, [c_void_p]),
        "begun": (c_uint64, [c_void_p]),
        "last_fault": (None, [c_void_p, c_char_p, c_size_t]),
        "attach": (c_int, [c_void_p, c_int]),
        "region": (None, [c_char_p, c_int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"april_memory_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Core:
    """One saver of the core. Methods release the interpreter's lock while they run."""

    def __init__(
        self, driver: str, path: str, device: int, limit: int, chunk: int, extent_limit: int, folder: str
    ) -> None:
        self._library = load()
        error = _Error()
        self._handle = self._library.april_memory_open(
            driver.encode(), path.encode(), device, limit, chunk, extent_limit, folder.encode(), byref(error)
        )
        if not self._handle:
            raise error.fault()
        self._process = os.getpid()

    def __del__(self) -> None:
        # A fork has no right to it; at the interpreter's end the kernel takes all, and a runtime may be gone already.
        if getattr(self, "_process", None) == os.getpid() and not sys.is_finalizing():
            self.close()

    @property
    def opened(self) -> bool:
        """Whether it was not closed."""
        return bool(self._handle)

    def close(self) -> None:
        """Releases everything, blocks in use too; calling it again does nothing."""
        handle, self._handle = self._handle, None
        if handle:
            self._library.april_memory_close(handle)

    def handle(self) -> Any:
        """The core's handle. Raises AprilError once it was closed: the core must not be called then."""
        if not self._handle:
            raise AprilError("memory: this saver is closed: make another one")
        return self._handle

    def _checked(self, name: str, *arguments: Any) -> None:
        error = _Error()
        if getattr(self._library, f"april_memory_{name}")(self.handle(), *arguments, byref(error)):
            raise error.fault()

    def allocate(self, tag: str, keep: Keep, size: int) -> int:
        """The address of a new block."""
        block = c_void_p()
        self._checked("allocate", tag.encode(), int(keep), size, byref(block))
        assert block.value is not None
        return block.value

    def free(self, address: int) -> None:
        """Takes a block back, whether its tag is paused or not."""
        self._checked("free", address)

    def pause(self, tag: str) -> Moved:
        """Takes the memory of a tag away."""
        moved = Moved()
        self._checked("pause", tag.encode(), byref(moved))
        return moved

    def resume(self, tag: str) -> Moved:
        """Brings the memory of a tag back."""
        moved = Moved()
        self._checked("resume", tag.encode(), byref(moved))
        return moved

    def compact(self) -> Moved:
        """Returns the unused pool and merges what is paused."""
        moved = Moved()
        self._checked("compact", byref(moved))
        return moved

    def info(self) -> tuple[int, int]:
        """The device's free and total bytes."""
        free, total = c_size_t(), c_size_t()
        self._checked("info", byref(free), byref(total))
        return free.value, total.value

    def read(self, address: int, size: int) -> bytes:
        """Device memory as bytes."""
        buffer = ctypes.create_string_buffer(size)
        self._checked("copy", address, buffer, size, 1)
        return buffer.raw

    def write(self, address: int, data: bytes) -> None:
        """Bytes to device memory."""
        self._checked("copy", address, ctypes.create_string_buffer(data, len(data)), len(data), 0)

    def backup(self, address: int, size: int) -> int | None:
        """Where on the host a paused range waits, or None."""
        found: int | None = self._library.april_memory_backup(self.handle(), address, size)
        return found

    def state(self, address: int) -> str | None:
        """``active``, ``paused``, or None for an address that is not of this saver."""
        return (None, "active", "paused")[self._library.april_memory_state(self.handle(), address)]

    def counters(self, tag: str | None) -> dict[str, int]:
        """The counters of a tag, or of all."""
        counters = Counters()
        self._library.april_memory_stats(self.handle(), None if tag is None else tag.encode(), byref(counters))
        return {name: getattr(counters, name) for name in COUNTERS}

    def tags(self) -> list[str]:
        """Every tag under which something was ever allocated, sorted."""
        room = 1
        while True:
            names = ctypes.create_string_buffer(room)
            needed = self._library.april_memory_tags(self.handle(), names, room)
            if needed <= room:
                return names.value.decode().split("\n") if names.value else []
            room = needed

    def clean(self, tag: str) -> None:
        """The contents of a tag have been written anew."""
        self._library.april_memory_clean(self.handle(), tag.encode())

    def set(self, margin: int, retain: bool) -> None:
        """``margin`` bytes stay free when something is allocated; ``retain`` keeps backups after a resume."""
        self._library.april_memory_set(self.handle(), margin, retain)

    def granularity(self) -> int:
        """The unit of the runtime's memory."""
        return int(self._library.april_memory_granularity(self.handle()))

    def running(self) -> str | None:
        """The runtime's function that is running now."""
        name: bytes | None = self._library.april_memory_running(self.handle())
        return name.decode() if name else None

    def begun(self) -> int:
        """How many of the runtime's functions were called until now."""
        return int(self._library.april_memory_begun(self.handle()))

    def last_fault(self) -> str:
        """The last fault that failed no operation; empty where there was none."""
        text = ctypes.create_string_buffer(512)
        self._library.april_memory_last_fault(self.handle(), text, len(text))
        return text.value.decode(errors="replace")

    def attach(self, device: int) -> None:
        """PyTorch's allocator takes a device's memory from this saver."""
        if self._library.april_memory_attach(self.handle(), device):
            raise ValueError(f"no such device: {device}")


_region = threading.local()


def swap_region(tag: str, keep: Keep) -> tuple[str, Keep]:
    """What PyTorch's allocator allocates in this thread from now on; returns what it was before."""
    before: tuple[str, Keep] = getattr(_region, "now", ("default", Keep.NOTHING))
    _region.now = tag, keep
    load().april_memory_region(tag.encode(), int(keep))
    return before
