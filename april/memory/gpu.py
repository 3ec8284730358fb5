"""PyTorch's device memory under a saver: a pluggable allocator, and one memory pool for each kind of region.

PyTorch asks for segments of 2 MiB and more and cuts them into tensors itself; a segment of its is a block of ours. The
calls below need a GPU: on a CPU, tests call the allocator's two symbols over an emulated runtime.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from april.memory import build, library
from april.memory.kinds import Keep
from april.memory.saver import MemorySaver

LEGACY_ROCM = (7,)
"""HIP below this fails to create large pieces (torch_memory_saver#9, #14, #52)."""
LEGACY_EXTENT = 2 << 20


def driver() -> str:
    """The driver for PyTorch's build and this machine."""
    if not torch.cuda.is_available():
        return "host"
    return "hip" if torch.version.hip else "cuda"


def extent_limit() -> int:
    """The largest piece of memory that the runtime is to be asked for; 0 for any."""
    release = tuple(int(part) for part in (torch.version.hip or "99").split(".")[:1])
    return LEGACY_EXTENT if release < LEGACY_ROCM else 0


class Pools:
    """The memory pools of one saver, made when a region is entered first."""

    def __init__(self, saver: MemorySaver) -> None:
        self._saver = saver
        saver.core.attach(saver.device)
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
            str(build.core()), "april_torch_malloc", "april_torch_free"
        )
        self._plain = torch.cuda.MemPool()
        self._pools: dict[tuple[str, Keep], Any] = {}
        self._graph_pools: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def pool(self, tag: str, keep: Keep) -> Any:
        """The pool of a kind of region."""
        with self._lock:
            if (tag, keep) not in self._pools:
                self._pools[tag, keep] = torch.cuda.MemPool(self._allocator.allocator())
            return self._pools[tag, keep]

    def graph_pool(self, shared: Any) -> Any:
        """The pool that stands for PyTorch's handle ``shared`` of a graph pool (None: a new one)."""
        with self._lock:
            if shared is None or shared not in self._graph_pools:
                made = torch.cuda.MemPool(self._allocator.allocator())
                self._graph_pools[shared if shared is not None else made.id] = made
                return made
            return self._graph_pools[shared]

    @contextlib.contextmanager
    def using(self, saver: MemorySaver) -> Iterator[None]:
        """For ``MemorySaver(capture=...)``: this thread's allocations on the device come from its region's pool."""
        region = saver.current
        if region is None:  # switched off inside a region: a pool with PyTorch's own allocator
            with torch.cuda.use_mem_pool(self._plain):
                yield
            return
        before = library.swap_region(*region)
        try:
            with torch.cuda.use_mem_pool(self.pool(*region)):
                yield
        finally:
            library.swap_region(*before)

    @contextlib.contextmanager
    def capturing(self, region: tuple[str, Keep], graph: Any, shared: Any, stream: Any, mode: str) -> Iterator[None]:
        """``torch.cuda.graph`` whose memory belongs to the region."""
        before = library.swap_region(*region)
        try:
            with torch.cuda.graph(graph, pool=self.graph_pool(shared).id, stream=stream, capture_error_mode=mode):
                yield
        finally:
            library.swap_region(*before)
