"""The two symbols that PyTorch's pluggable allocator calls, over an emulated runtime."""

from __future__ import annotations

import ctypes
import threading

import pytest

from april.memory import Keep, library
from april.memory.emulated import GRANULARITY, Emulated

MIB = 1 << 20


@pytest.fixture
def symbols() -> ctypes.CDLL:
    core = ctypes.CDLL(str(library.build.core()))
    core.april_torch_malloc.restype = ctypes.c_void_p
    core.april_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    core.april_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    return core


def test_memory_belongs_to_the_threads_region(gpu: Emulated, symbols: ctypes.CDLL) -> None:
    saver = gpu.saver(device=3)
    saver.core.attach(3)
    before = library.swap_region("kv_cache", Keep.NOTHING)
    block = symbols.april_torch_malloc(20 * MIB, 3, None)
    other = []
    thread = threading.Thread(target=lambda: other.append(symbols.april_torch_malloc(2 * MIB, 3, None)))
    thread.start()
    thread.join()
    library.swap_region("weights", Keep.PINNED)
    weights = symbols.april_torch_malloc(2 * MIB, 3, None)
    saver.core.write(weights, b"w" * MIB)
    library.swap_region(*before)
    assert {tag: row.allocated for tag, row in saver.stats().tags.items()} == {
        "kv_cache": 20 * MIB,
        "weights": 2 * MIB,
        "default": 2 * MIB,
    }
    assert block % GRANULARITY == weights % GRANULARITY == 0
    saver.pause()
    symbols.april_torch_free(block, 20 * MIB, 3, None)
    saver.resume()
    assert saver.core.read(weights, MIB) == b"w" * MIB
    symbols.april_torch_free(weights, 2 * MIB, 3, None)
    symbols.april_torch_free(other[0], 2 * MIB, 3, None)
    assert saver.stats().total.blocks == 0
    saver.close()


def test_out_of_memory_is_a_null_pointer(gpu: Emulated, symbols: ctypes.CDLL) -> None:
    """PyTorch then empties its caches, tries again, and raises its own error."""
    gpu.resize(8 * MIB)
    saver = gpu.saver()
    saver.core.attach(0)
    assert symbols.april_torch_malloc(10 * MIB, 0, None) is None
    held = symbols.april_torch_malloc(8 * MIB, 0, None)
    assert symbols.april_torch_malloc(2 * MIB, 0, None) is None
    symbols.april_torch_free(held, 8 * MIB, 0, None)
    assert symbols.april_torch_malloc(2 * MIB, 0, None) is not None
    saver.close()


@pytest.mark.parametrize("device", [-1, 5, 64, 1000])
def test_a_device_without_a_saver(symbols: ctypes.CDLL, device: int) -> None:
    assert symbols.april_torch_malloc(2 * MIB, device, None) is None
    symbols.april_torch_free(None, 0, device, None)


def test_a_closed_saver_is_not_attached_any_more(gpu: Emulated, symbols: ctypes.CDLL) -> None:
    saver = gpu.saver()
    saver.core.attach(6)
    saver.close()
    assert symbols.april_torch_malloc(2 * MIB, 6, None) is None
    with pytest.raises(ValueError, match="no such device"):
        gpu.saver().core.attach(64)


def test_a_capture_may_take_memory_and_finds_its_mode_again(gpu: Emulated, symbols: ctypes.CDLL) -> None:
    saver = gpu.saver()
    saver.core.attach(0)
    before = gpu.count("capture")
    assert symbols.april_torch_malloc(2 * MIB, 0, None) is not None
    assert gpu.count("capture") == before + 2
    assert gpu.capture_mode() == 0
    gpu.resize(2 * MIB)
    assert symbols.april_torch_malloc(2 * MIB, 0, None) is None
    assert gpu.capture_mode() == 0
    saver.close()
