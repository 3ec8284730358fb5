"""Every call of an emulated runtime fails once, at every index; and the faults that users have reported."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from april.memory import Keep, MemoryFault, MemorySaver
from april.memory.emulated import CALLS, GRANULARITY, OUT_OF_MEMORY, Emulated
from april.memory.errors import Cause

MIB = 1 << 20
WEIGHTS, OTHER = b"w" * (5 * MIB), b"o" * (3 * MIB)


def retried(step: Callable[[], object], gpu: Emulated, faults: list[Cause]) -> None:
    """A step that may fail once; then all is calm, and it must work."""
    try:
        step()
    except MemoryFault as fault:
        faults.append(fault.cause)  # not the fault, whose traceback holds blocks
        gpu.calm()
        step()


def scenario(gpu: Emulated) -> tuple[list[Cause], int, dict[str, int]]:
    """Two tags in several pieces through all operations.

    Returns the faults that showed, how many were only counted, and how often each call had been used until then.
    """
    faults: list[Cause] = []
    made: dict[str, Any] = {}
    retried(lambda: made.update(saver=gpu.saver(extent_limit=GRANULARITY)), gpu, faults)
    saver = made.pop("saver")

    def allocate(name: str, size: int, keep: Keep) -> None:
        made[name] = saver.allocate(size, name.split("-")[0], keep)

    retried(lambda: allocate("weights", len(WEIGHTS), Keep.PINNED), gpu, faults)
    retried(lambda: allocate("other", len(OTHER), Keep.MMAP), gpu, faults)
    retried(lambda: allocate("other-spare", 4 * MIB, Keep.MMAP), gpu, faults)
    retried(lambda: made["weights"].write(WEIGHTS), gpu, faults)
    retried(lambda: made["other"].write(OTHER), gpu, faults)
    addresses = {name: block.address for name, block in made.items()}
    for tag in ("weights", "other"):
        retried(lambda tag=tag: saver.pause(tag), gpu, faults)  # type: ignore[misc]
    made.pop("other-spare").free()
    retried(saver.compact, gpu, faults)
    for tag in ("other", "weights"):
        retried(lambda tag=tag: saver.resume(tag), gpu, faults)  # type: ignore[misc]
    gpu.calm()
    used = {name: gpu.count(name) for name in gpu.calls}
    assert made["weights"].read() == WEIGHTS
    assert made["other"].read() == OTHER
    assert all(addresses[name] == block.address for name, block in made.items())
    counted = saver.stats().faults
    made.clear()
    saver.compact()
    assert saver.stats().total.reserved == saver.stats().total.stuck == 0
    saver.close()
    return faults, counted, used


@pytest.mark.parametrize("what", [name for name in CALLS["hip"] if name != "copy_in"])
def test_every_call_fails_once_at_every_index(gpu: Emulated, what: str) -> None:
    first = gpu.count(what)
    faults, counted, used = scenario(gpu)
    assert (faults, counted) == ([], 0)
    uses = used[what] - first
    assert uses > 0, "the scenario never gets there"
    before = gpu.held()
    for nth in range(1, uses + 1):
        gpu.fail(what, nth, OUT_OF_MEMORY if what == "create" else 1)
        faults, counted, _ = scenario(gpu)
        assert faults or counted or what == "info", f"{what} failed at use {nth}, and nobody said so"
        assert gpu.held() == before, f"{what} failed at use {nth}, and something is left"
        assert {cause.call for cause in faults} <= {gpu.calls[what]}


def test_restoring_contents_fails_at_every_index(gpu: Emulated) -> None:
    for nth in range(1, 4):
        gpu.fail("copy_in", nth)
        faults, _, _ = scenario(gpu)
        assert [cause.call for cause in faults] == [gpu.calls["copy_in"]]


@pytest.mark.parametrize("pieces_that_fit", range(5))
def test_out_of_memory_in_the_middle_of_a_resume(gpu: Emulated, pieces_that_fit: int) -> None:
    """The tag, the bytes wanted and free are named, the tag stays paused, all else works, and so does a retry."""
    gpu.resize(64 * MIB)
    saver = gpu.saver(extent_limit=GRANULARITY)
    weights, cache = saver.allocate(5 * GRANULARITY, "weights"), saver.allocate(8 * MIB, "kv_cache", keep=True)
    weights.write(b"w" * weights.size)
    cache.write(b"c" * cache.size)
    saver.pause("weights")
    rest = saver.stats().device_free - pieces_that_fit * GRANULARITY
    hog = gpu.saver()
    held = hog.allocate(rest, "training")
    with pytest.raises(MemoryFault) as caught:
        saver.resume("weights")
    cause = caught.value.cause
    free = pieces_that_fit * GRANULARITY
    assert (cause.tag, cause.wanted, cause.free, cause.out_of_memory) == ("weights", weights.size, free, True)
    assert f"{weights.size:,} bytes wanted, {free:,} free" in str(caught.value)
    assert saver.stats().device_free == free
    assert saver.stats().tags["weights"].paused == weights.size
    saver.pause("kv_cache")
    saver.resume("kv_cache")
    assert cache.read() == b"c" * cache.size
    held.free()
    hog.compact()
    saver.resume("weights")
    assert weights.read() == b"w" * weights.size
    saver.close()
    hog.close()


def test_out_of_memory_on_a_host(tmp_path) -> None:  # type: ignore[no-untyped-def]
    saver = MemorySaver(limit=16 * MIB, backup_folder=str(tmp_path))
    weights = saver.allocate(12 * MIB, "weights")
    weights.write(b"w" * weights.size)
    saver.pause("weights")
    cache = saver.allocate(8 * MIB, "kv_cache")
    with pytest.raises(MemoryFault, match=r"resume\(weights\).*12,582,912 bytes wanted, 8,388,608 free"):
        saver.resume("weights")
    saver.pause("kv_cache")
    saver.resume("weights")
    assert weights.read() == b"w" * weights.size
    del cache


def test_no_room_for_a_backup_changes_nothing(gpu: Emulated) -> None:
    saver = gpu.saver()
    blocks = [saver.allocate(4 * MIB, "weights") for _ in range(3)]
    for block in blocks:
        block.write(b"w" * block.size)
    gpu.fail("pin", 3, OUT_OF_MEMORY)
    free = saver.stats().device_free
    with pytest.raises(MemoryFault, match=r"pause\(weights\)"):
        saver.pause("weights")
    assert saver.stats().device_free == free
    assert saver.stats().total.paused == saver.stats().total.backup == 0
    assert all(block.read() == b"w" * block.size for block in blocks)
    saver.close()


def test_the_unused_pool_is_returned_before_memory_is_refused(gpu: Emulated) -> None:
    gpu.resize(32 * MIB)
    saver = gpu.saver()
    saver.allocate(24 * MIB, "kv_cache").free()
    assert saver.allocate(24 * MIB, "weights").size == 24 * MIB
    saver.close()


def test_a_pause_that_frees_nothing_is_an_error(gpu: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch_memory_saver#83, #14: ROCm 7.2 and 6.4.0 release memory and keep it."""
    monkeypatch.setattr("april.memory.saver.SETTLE_S", 0.1)
    gpu.resize(1 << 40)
    saver = gpu.saver()
    block = saver.allocate(8 * MIB, "kv_cache")
    gpu.hoard(True)
    with pytest.raises(MemoryFault, match="8,388,608 bytes were released, and 0 came back"):
        saver.pause("kv_cache")
    saver.resume("kv_cache")
    with pytest.raises(MemoryFault, match="came back"):
        saver.pause()
    gpu.hoard(False)
    saver.resume()
    assert block.read() is not None
    saver.close()


def test_sizes_are_multiples_of_the_granularity(gpu: Emulated) -> None:
    """torch_memory_saver#109, #43, #65: MI300's is 2 MiB, and a runtime refuses anything else."""
    saver = gpu.saver(chunk=1)
    assert saver.core.granularity() == GRANULARITY
    for size in (1, GRANULARITY - 1, GRANULARITY, GRANULARITY + 1):
        block = saver.allocate(size, "weights")
        assert saver.stats().total.reserved % GRANULARITY == 0
        block.write(b"g" * size)
        saver.pause()
        saver.resume()
        assert block.read() == b"g" * size
    saver.close()


def test_legacy_pieces_of_two_mebibytes(gpu: Emulated) -> None:
    """torch_memory_saver#9, #52: below ROCm 7 large pieces cannot be created."""
    saver = gpu.saver(extent_limit=3 << 20)  # rounded up to the granularity
    block = saver.allocate(10 * GRANULARITY, "weights")
    created = gpu.count("create")
    assert saver.stats().total.extents == 5
    saver.pause()
    saver.resume()
    assert gpu.count("create") - created == 5
    assert block.size == 10 * GRANULARITY
    saver.close()


def test_memory_that_a_runtime_does_not_take_is_counted_and_tried_again(gpu: Emulated) -> None:
    saver = gpu.saver(extent_limit=GRANULARITY, verify=False)
    block = saver.allocate(3 * GRANULARITY, "weights")
    block.write(b"s" * block.size)
    gpu.fail("release", 2)
    with pytest.raises(MemoryFault, match=gpu.calls["release"]):
        saver.pause("weights")
    stats = saver.stats().tags["weights"]
    assert (stats.stuck, stats.paused) == (GRANULARITY, 2 * GRANULARITY)
    assert saver.pause("weights") == GRANULARITY
    assert saver.stats().total.stuck == 0
    saver.resume("weights")
    assert block.read() == b"s" * block.size
    saver.close()


def test_threads(make: Callable[..., MemorySaver]) -> None:
    """Allocating, freeing, pausing and resuming at once: every block keeps its contents, and nothing is left."""
    saver = make(limit=1 << 30, verify=False)
    wrong: list[str] = []

    def work(number: int) -> None:
        tag = f"tag-{number}"
        draw = random.Random(number)
        for step in range(60):
            block = saver.allocate(draw.randrange(1, 3 * MIB), tag, Keep.MMAP)
            data = bytes([number, step]) * (block.size // 2)
            block.write(data)
            saver.pause(tag)
            if draw.random() < 0.3:
                block.free()
                saver.resume(tag)
                continue
            saver.resume(tag)
            if block.read()[: len(data)] != data:
                wrong.append(f"{tag}, step {step}")
            if draw.random() < 0.2:
                saver.compact()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    saver.compact()
    assert saver.stats().total.reserved == saver.stats().faults == 0
