"""Which pool and tag PyTorch's device memory gets in nested regions; PyTorch's own pools are stand-ins here."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from april.memory import Keep, MemorySaver
from april.memory.emulated import Emulated

torch = pytest.importorskip("torch")
from april.memory import gpu as torch_gpu  # noqa: E402

MIB = 1 << 20


class Device:
    """PyTorch's side: the pools in use, and a malloc that goes to the allocator of the innermost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stack: list[Any] = []
        self.graphs: list[Any] = []
        self._ids = itertools.count()
        monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", self.load)
        monkeypatch.setattr(torch.cuda, "MemPool", self.pool)
        monkeypatch.setattr(torch.cuda, "use_mem_pool", self.use)
        monkeypatch.setattr(torch.cuda, "graph", self.graph)

    def load(self, path: str, malloc: str, free: str) -> Any:
        library = ctypes.CDLL(path)
        self.malloc, self.free = getattr(library, malloc), getattr(library, free)
        self.malloc.restype = ctypes.c_void_p
        self.malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        return SimpleNamespace(allocator=lambda: "ours")

    def pool(self, allocator: Any = None) -> Any:
        return SimpleNamespace(allocator=allocator, id=next(self._ids))

    @contextlib.contextmanager
    def use(self, pool: Any) -> Iterator[None]:
        self.stack.append(pool)
        try:
            yield
        finally:
            self.stack.pop()

    @contextlib.contextmanager
    def graph(self, graph: Any, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        self.graphs.append((graph, pool))
        yield

    def allocate(self) -> None:
        """2 MiB of device memory, as PyTorch would ask for them now."""
        if self.stack and self.stack[-1].allocator == "ours":
            assert self.malloc(2 * MIB, 0, None)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.fixture
def saver(gpu: Emulated, device: Device) -> Iterator[MemorySaver]:
    holder: list[torch_gpu.Pools] = []
    made = gpu.saver(capture=lambda saver: holder[0].using(saver))
    holder.append(torch_gpu.Pools(made))
    made.pools = holder[0]  # type: ignore[attr-defined]
    yield made
    made.close()


def allocated(saver: MemorySaver) -> dict[str, int]:
    return {tag: row.allocated // (2 * MIB) for tag, row in saver.stats().tags.items()}


def test_nested_regions(saver: MemorySaver, device: Device) -> None:
    device.allocate()
    with saver.region("weights", keep=True):
        device.allocate()
        with saver.region("kv_cache", keep=False):
            device.allocate()
            with saver.disable():
                device.allocate()
                with saver.region("drafter", keep=False):
                    device.allocate()
                device.allocate()
            device.allocate()
        device.allocate()
    device.allocate()
    assert allocated(saver) == {"weights": 2, "kv_cache": 2, "drafter": 1}


def test_one_pool_for_each_kind_of_region(saver: MemorySaver, device: Device) -> None:
    pools: torch_gpu.Pools = saver.pools  # type: ignore[attr-defined]
    assert pools.pool("a", Keep.NOTHING) is pools.pool("a", Keep.NOTHING)
    assert len({pools.pool(tag, keep).id for tag in "ab" for keep in (Keep.NOTHING, Keep.PINNED)}) == 4


def test_a_region_that_fails_is_left(saver: MemorySaver, device: Device) -> None:
    with pytest.raises(ZeroDivisionError), saver.region("weights"):
        raise ZeroDivisionError
    assert saver.current is None


def test_graphs_share_a_pool_where_the_caller_shares_one(saver: MemorySaver, device: Device) -> None:
    pools: torch_gpu.Pools = saver.pools  # type: ignore[attr-defined]
    region = ("cuda_graph", Keep.PINNED)
    for name, shared in [("a", (0, 1)), ("b", (0, 1)), ("c", (0, 2)), ("d", None), ("e", None)]:
        with pools.capturing(region, name, shared, None, "global"):
            assert device.malloc(2 * MIB, 0, None)
    used = dict(device.graphs)
    assert used["a"] == used["b"]
    assert len(set(used.values())) == 4
    assert allocated(saver) == {"cuda_graph": 5}


@pytest.mark.parametrize(("hip", "limit"), [(None, 0), ("6.3.42131", 2 * MIB), ("7.0.1", 0)])
def test_pieces_by_the_release_of_rocm(monkeypatch: pytest.MonkeyPatch, hip: str | None, limit: int) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    assert torch_gpu.extent_limit() == limit


@pytest.mark.parametrize(("there", "hip", "name"), [(False, None, "host"), (True, None, "cuda"), (True, "7.0", "hip")])
def test_the_driver_of_this_machine(monkeypatch: pytest.MonkeyPatch, there: bool, hip: str | None, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert torch_gpu.driver() == name
