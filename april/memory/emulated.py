"""The stand-ins for HIP's and CUDA's libraries, and the knobs that they have for tests. See native/emulated/gpu.cpp."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from april.memory import build
from april.memory.saver import MemorySaver

GRANULARITY = 2 << 20
INVALID, OUT_OF_MEMORY = 1, 2
TOTAL = 1 << 30

CALLS = {
    "hip": {
        **{"reserve": "hipMemAddressReserve", "create": "hipMemCreate", "map": "hipMemMap"},
        **{"access": "hipMemSetAccess", "unmap": "hipMemUnmap", "release": "hipMemRelease"},
        **{
            "address_free": "hipMemAddressFree",
            "info": "hipMemGetInfo",
            "pin": "hipHostMalloc",
            "unpin": "hipHostFree",
        },
        **{"copy_out": "hipMemcpy", "copy_in": "hipMemcpy", "synchronize": "hipDeviceSynchronize"},
        "capture": "hipThreadExchangeStreamCaptureMode",
    },
    "cuda": {
        **{"reserve": "cuMemAddressReserve", "create": "cuMemCreate", "map": "cuMemMap"},
        **{"access": "cuMemSetAccess", "unmap": "cuMemUnmap", "release": "cuMemRelease"},
        **{"address_free": "cuMemAddressFree", "info": "cuMemGetInfo_v2"},
        **{"pin": "cuMemAllocHost_v2", "unpin": "cuMemFreeHost"},
        **{"copy_out": "cuMemcpyDtoH_v2", "copy_in": "cuMemcpyHtoD_v2", "synchronize": "cuCtxSynchronize"},
        "capture": "cuThreadExchangeStreamCaptureMode",
    },
}
"""What a saver does, and the function of the runtime that does it."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a runtime holds for all its users."""

    handles: int
    mappings: int
    reservations: int
    pins: int
    in_use: int


class Emulated:
    """One emulated runtime of this process; all savers over it share its memory, as they would a device's."""

    def __init__(self, runtime: str, total: int = TOTAL) -> None:
        self.runtime, self.calls = runtime, CALLS[runtime]
        self.path = str(build.emulated(runtime))
        self._library = ctypes.CDLL(self.path)
        self._library.emulated_calls.restype = ctypes.c_long
        self.resize(total)

    def saver(self, **options: Any) -> MemorySaver:
        """A saver over it."""
        return MemorySaver(driver=self.runtime, library=self.path, **options)

    def resize(self, total: int) -> None:
        """The device has this many bytes."""
        self._library.emulated_total(ctypes.c_size_t(total))

    def fail(self, what: str, nth: int = 1, code: int = INVALID, delay_ms: int = 0) -> None:
        """The ``nth`` use of a call from now (0: each) answers ``code``, after a wait; one fault for each call."""
        name = self.calls[what].encode()
        self._library.emulated_fail(name, ctypes.c_long(nth), ctypes.c_long(code), ctypes.c_long(delay_ms))

    def hoard(self, on: bool) -> None:
        """Released memory is not given back, as on ROCm 6.4.0 and 7.2 (torch_memory_saver#14, #83)."""
        self._library.emulated_hoard(int(on))

    def calm(self) -> None:
        """No faults any more."""
        self._library.emulated_calm()
        self.hoard(False)

    def count(self, what: str) -> int:
        """How often a call was used."""
        return int(self._library.emulated_calls(self.calls[what].encode()))

    def capture_mode(self) -> int:
        """This thread's: 0 where nobody changed it."""
        return int(self._library.emulated_capture_mode())

    def held(self) -> Held:
        """What is held now."""
        counts = (ctypes.c_size_t * 5)()
        self._library.emulated_held(counts)
        return Held(*counts)
