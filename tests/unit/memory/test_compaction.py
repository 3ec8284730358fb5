"""Fragmentation is measured, and what is unused goes back, between rounds only."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from april.memory import Keep, MemorySaver
from april.memory.emulated import GRANULARITY, Emulated

MIB = 1 << 20
Make = Callable[..., MemorySaver]


def holey(saver: MemorySaver) -> tuple[list, dict[int, bytes]]:  # type: ignore[type-arg]
    """A segment of 16 granules of which every fourth is in use."""
    blocks = [saver.allocate(GRANULARITY, "weights", keep=True) for _ in range(16)]
    kept = blocks[::4]
    for block in kept:
        block.write(os.urandom(block.size))
    contents = {block.address: block.read() for block in kept}
    for block in blocks:
        if block not in kept:
            block.free()
    return kept, contents


def test_what_is_measured(make: Make) -> None:
    saver = make(chunk=32 * MIB)
    _kept, _ = holey(saver)
    row = saver.stats().tags["weights"]
    assert (row.reserved, row.allocated, row.largest_free) == (32 * MIB, 8 * MIB, 6 * MIB)
    assert row.fragmentation == 0.75
    assert (row.segments, row.extents, row.blocks, row.holes) == (1, 1, 4, 0)
    told = saver.stats().as_dict()
    assert told["tags"]["weights"]["fragmentation"] == told["total"]["fragmentation"] == 0.75


def test_paused_regions_come_back_without_their_gaps(make: Make) -> None:
    saver = make(chunk=32 * MIB)
    kept, contents = holey(saver)
    free = saver.stats().device_free
    saver.pause("weights")
    assert saver.compact() == 24 * MIB
    row = saver.stats().tags["weights"]
    assert (row.reserved, row.allocated, row.holes, row.extents) == (8 * MIB, 8 * MIB, 24 * MIB, 4)
    assert row.fragmentation == 0
    saver.resume("weights")
    assert {block.address: block.read() for block in kept} == contents
    assert saver.stats().device_free == free + 24 * MIB
    new = saver.allocate(6 * MIB, "weights", keep=True)
    assert saver.stats().tags["weights"].segments == 2, "holes are addresses without memory"
    new.write(b"n" * new.size)
    for block in kept:
        block.free()
    saver.compact()
    assert saver.stats().tags["weights"].holes == 0
    assert new.read() == b"n" * new.size


def test_neighbours_become_one_piece(gpu: Emulated) -> None:
    saver = gpu.saver(chunk=32 * MIB)
    blocks = [saver.allocate(GRANULARITY, "weights", keep=True) for _ in range(16)]
    for index in (0, 1, 2, 7, 8, 15):
        blocks[index].write(bytes([index]) * GRANULARITY)
    for index in set(range(16)) - {0, 1, 2, 7, 8, 15}:
        blocks[index].free()
    saver.pause()
    saver.compact()
    created = gpu.count("create")
    saver.resume()
    assert gpu.count("create") - created == saver.stats().total.extents == 3
    assert all(blocks[index].read() == bytes([index]) * GRANULARITY for index in (0, 1, 2, 7, 8, 15))
    saver.close()


def test_blocks_smaller_than_a_granule_share_it(make: Make) -> None:
    saver = make(chunk=8 * MIB)
    blocks = [saver.allocate(700, "weights", keep=True) for _ in range(3000)]
    kept = blocks[::50]
    for number, block in enumerate(kept):
        block.write(bytes([number]) * 700)
    del blocks
    saver.pause()
    saver.compact()
    saver.resume()
    assert all(block.read() == bytes([number]) * 700 for number, block in enumerate(kept))
    assert saver.allocate(700, "weights", keep=True).address > 0
    assert saver.stats().total.segments == 1, "what is left of a granule is used"


def test_active_regions_are_left_as_they_are(make: Make) -> None:
    saver = make(chunk=32 * MIB)
    kept, contents = holey(saver)
    assert saver.compact() == 0
    assert saver.stats().tags["weights"].reserved == 32 * MIB
    assert {block.address: block.read() for block in kept} == contents


def test_the_unused_pool_goes_back(make: Make) -> None:
    saver = make()
    free = saver.stats().device_free
    saver.allocate(64 * MIB, "kv_cache").free()
    assert saver.stats().device_free == free - 64 * MIB
    assert saver.compact() == 64 * MIB
    assert saver.stats().device_free == free
    assert saver.stats().compactions == 1


def test_between_rounds_it_waits_for_the_interval_or_for_fragmentation(make: Make) -> None:
    saver = make(compaction_interval=20, max_fragmentation=0.4)
    blocks = [saver.allocate(2 * MIB, "weights") for _ in range(10)]
    assert saver.between_rounds() is None
    for block in blocks[6:]:
        block.free()
    assert saver.stats().total.fragmentation == pytest.approx(0.4)
    assert saver.between_rounds() is None
    blocks[5].free()
    assert saver.between_rounds() == 10 * MIB
    assert saver.stats().total.fragmentation == 0
    assert saver.between_rounds() is None
    for _ in range(10):
        saver.allocate(2 * MIB, "weights").free()
    assert saver.stats().total.fragmentation < 0.4
    assert saver.between_rounds() == 2 * MIB
    assert saver.stats().compactions == 2


def test_nothing_is_compacted_by_itself(make: Make) -> None:
    saver = make(compaction_interval=1, max_fragmentation=0.01)
    for _ in range(50):
        saver.allocate(4 * MIB, "weights").free()
    assert saver.stats().compactions == 0


def test_fifty_cycles_do_not_creep(make: Make) -> None:
    """slime#579, #638, #651, #1136."""
    saver = make(compaction_interval=100)
    weights = [saver.allocate((2 + number) * GRANULARITY, "weights", Keep.MMAP) for number in range(4)]
    used = []
    for cycle in range(50):
        cache = [saver.allocate((1 + (cycle * 7 + number) % 9) * MIB // 2, "kv_cache") for number in range(8)]
        saver.pause()
        del cache[cycle % 8]
        saver.resume()
        cache.clear()
        saver.between_rounds()
        stats = saver.stats()
        used.append(stats.device_total - stats.device_free)
    saver.compact()
    stats = saver.stats()
    held = sum(block.size for block in weights)
    assert stats.device_total - stats.device_free == stats.total.reserved == held
    assert max(used) <= held + 9 * 8 * MIB
