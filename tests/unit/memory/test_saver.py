"""Pause and resume on every driver: addresses, contents, order, accounting."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from april.errors import AprilError, UsageError
from april.memory import Keep, MemoryFault, MemorySaver, kinds

MIB = 1 << 20
Make = Callable[..., MemorySaver]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_pause_frees_and_a_resume_restores(make: Make) -> None:
    saver = make()
    weights, cache = saver.allocate(32 * MIB, "weights"), saver.allocate(64 * MIB, "kv_cache")
    data = os.urandom(32 * MIB)
    weights.write(data)
    cache.write(b"\1" * cache.size)
    free = saver.stats().device_free
    assert saver.pause() == 96 * MIB
    assert saver.stats().device_free == free + 96 * MIB
    assert saver.stats().total.paused == 96 * MIB
    assert saver.stats().total.backup == 32 * MIB
    assert saver.resume() == 96 * MIB
    assert weights.read() == data
    assert len(cache.read()) == cache.size
    assert saver.stats().device_free == free
    assert saver.stats().total.backup == 0


def test_resident_memory_of_a_host_falls_with_contents_kept(tmp_path: Path) -> None:
    saver = MemorySaver(backup_folder=str(tmp_path))
    block = saver.allocate(128 * MIB, "weights", keep=True)
    block.write(b"\7" * block.size)
    before = resident()
    saver.pause("weights")
    assert before - resident() >= 0.95 * block.size
    saver.resume("weights")
    assert block.read() == b"\7" * block.size
    assert resident() <= before + 8 * MIB  # the backup is gone with its pages
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", [Keep.NOTHING, Keep.MMAP, Keep.FILE, Keep.PINNED])
def test_what_is_kept_where(make: Make, keep: Keep) -> None:
    saver = make()
    if keep is Keep.PINNED and saver.driver == "host":
        with pytest.raises(UsageError, match="needs a GPU"):
            saver.allocate(1, "weights", keep)
        return
    block = saver.allocate(5 * MIB + 3, "weights", keep)
    block.write(b"x" * block.size)
    saver.pause("weights")
    assert (saver.core.backup(block.address, block.size) is not None) == (keep is not Keep.NOTHING)
    saver.resume("weights")
    assert saver.dirty("weights") == (keep is Keep.NOTHING)
    if keep is not Keep.NOTHING:
        assert block.read() == b"x" * block.size
    assert saver.core.backup(block.address, block.size) is None


def test_a_drafter_comes_back_dirty_until_it_is_written(make: Make) -> None:
    """sglang#13268, #31674: a drafter that was released comes back as zeros, and nobody notices."""
    saver = make()
    drafter, weights = saver.allocate(MIB, "drafter"), saver.allocate(MIB, "weights")
    saver.pause()
    saver.resume()
    assert saver.dirty("drafter")
    assert not saver.dirty("weights")
    drafter.write(b"q" * MIB)
    saver.mark_clean("drafter")
    assert not saver.stats().tags["drafter"].dirty
    del drafter, weights


def test_pause_and_resume_again_do_nothing(make: Make) -> None:
    saver = make()
    block = saver.allocate(MIB, "weights")
    block.write(b"a" * MIB)
    assert saver.resume("weights") == 0
    assert saver.pause("weights") > 0
    assert saver.pause("weights") == 0
    assert saver.pause() == 0
    assert saver.resume("weights") > 0
    assert saver.resume() == 0
    assert block.read() == b"a" * MIB


def test_unknown_tags_and_any_order(make: Make) -> None:
    saver = make()
    assert saver.pause("cuda_graph") == saver.resume("cuda_graph") == 0
    first, second = saver.allocate(MIB, "weights"), saver.allocate(MIB, "kv_cache")
    saver.pause("weights")
    saver.pause("kv_cache")
    saver.resume("weights")
    saver.pause("weights")
    saver.resume("kv_cache")
    saver.resume("weights")
    assert {saver.state(block.address) for block in (first, second)} == {"active"}


def test_an_allocation_under_a_paused_tag_is_active(make: Make) -> None:
    saver = make()
    old = saver.allocate(MIB, "weights")
    saver.pause("weights")
    new = saver.allocate(MIB, "weights")
    new.write(b"n" * MIB)
    assert saver.state(old.address) == "paused"
    assert saver.pause("weights") > 0
    saver.resume("weights")
    assert new.read() == b"n" * MIB


def test_a_block_freed_while_paused_is_released_once(make: Make) -> None:
    """torch_memory_saver#92."""
    saver = make()
    free = saver.stats().device_free
    blocks = [saver.allocate(4 * MIB, "weights") for _ in range(3)]
    saver.pause("weights")
    blocks.pop().free()
    address = blocks[0].address
    blocks.pop(0)
    assert saver.stats().tags["weights"].blocks == 1
    with pytest.raises(MemoryFault, match="freed twice"):
        saver.core.free(address)
    saver.resume("weights")
    blocks.clear()
    assert saver.compact() >= 4 * MIB
    assert saver.stats().device_free == free
    assert saver.stats().faults == 0


def test_closing_is_final_and_may_be_repeated(make: Make) -> None:
    saver = make()
    block = saver.allocate(MIB, "weights")
    saver.pause()
    saver.close()
    saver.close()
    block.free()
    for use in (lambda: saver.allocate(MIB, "weights"), saver.pause, saver.resume, saver.compact, saver.stats):
        with pytest.raises(AprilError, match="this saver is closed"):
            use()


def test_regions_nest_and_are_of_their_thread(make: Make) -> None:
    import threading

    saver = make()
    seen = []
    with saver.region("weights"):
        with saver.region("kv_cache", keep=True):
            inner = saver.allocate(10)
            with saver.disable():
                assert saver.current is None
                with pytest.raises(UsageError, match="inside of a region"):
                    saver.allocate(10)
        outer = saver.allocate(10)
        other = threading.Thread(target=lambda: seen.append(saver.current))
        other.start()
        other.join()
    assert (inner.tag, outer.tag, seen, saver.current) == ("kv_cache", "weights", [None], None)


@pytest.mark.parametrize("tag", ["", "a\nb", "x" * 64, "nul\0"])
def test_impossible_tags(make: Make, tag: str) -> None:
    saver = make()
    with pytest.raises(UsageError, match="memory tag"), saver.region(tag):
        pass


def test_any_other_tag_is_allowed(make: Make) -> None:
    saver = make()
    blocks = [saver.allocate(1, tag) for tag in ("é" * 31, "with spaces", "x" * 63)]
    assert set(saver.stats().tags) == {block.tag for block in blocks}


def test_the_order_of_a_resume_of_all() -> None:
    tags = ["kv_cache", "zeta", "training", "drafter", "weights", "graphs", "alpha"]
    assert kinds.in_order(tags) == ["weights", "drafter", "graphs", "training", "alpha", "zeta", "kv_cache"]


@pytest.mark.parametrize("options", [{"driver": "vulkan"}, {"compaction_interval": 0}, {"max_fragmentation": 0.0}])
def test_wrong_settings(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        MemorySaver(**options)  # type: ignore[arg-type]


def test_a_runtime_that_is_not_installed_is_one_line() -> None:
    with pytest.raises(MemoryFault, match="memory open: dlopen: ") as caught:
        MemorySaver(driver="hip", library="/nowhere/libamdhip64.so")
    assert "\n" not in str(caught.value)


def test_a_fork_may_not_use_its_parents_saver(make: Make) -> None:
    saver = make()
    block = saver.allocate(MIB, "weights")
    block.write(b"p" * MIB)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            saver.pause()
        except AprilError:
            block.free()
            saver.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert block.read() == b"p" * MIB


def test_touching_paused_host_memory_is_a_fault_not_garbage() -> None:
    script = (
        "import ctypes\nfrom april.memory import MemorySaver\ns = MemorySaver()\nb = s.allocate(4096, 'weights')\n"
        "s.pause()\nprint(ctypes.c_char.from_address(b.address).value)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.returncode == -11
    assert done.stdout == b""


def test_a_retained_backup_can_be_read_after_the_resume(make: Make) -> None:
    saver = make()
    saver.retain = True
    block = saver.allocate(4096, "weights")
    block.write(b"1" * 4096)
    saver.pause()
    saver.resume()
    assert saver.core.backup(block.address, 4096) is not None
    block.write(b"2" * 4096)
    saver.pause()
    saver.retain = False
    saver.resume()
    assert block.read() == b"2" * 4096
    assert saver.stats().total.backup == 0


def test_the_margin_stays_free(make: Make) -> None:
    saver = make(limit=64 * MIB)
    saver.margin = 32 * MIB
    block = saver.allocate(32 * MIB, "weights")
    with pytest.raises(MemoryFault, match="margin") as caught:
        saver.allocate(2 * MIB, "weights")
    assert caught.value.cause.out_of_memory
    saver.pause()
    saver.resume()
    assert len(block.read()) == 32 * MIB
