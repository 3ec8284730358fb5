"""Memory in any order of operations, with faults at any call, compared with a model of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from april.memory import Keep, MemoryFault, MemorySaver
from april.memory.block import Block
from april.memory.emulated import OUT_OF_MEMORY, Emulated

TAGS = ["weights", "kv_cache", "drafter"]
PLAN = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def shared_mappings() -> int:
    return sum("memfd:" in line for line in Path("/proc/self/maps").read_text().splitlines())


class Memory(RuleBasedStateMachine):
    """One saver; the model knows every block's address, contents, and whether its tag came back without them."""

    blocks: Bundle[Block] = Bundle("blocks")
    runtime = "host"

    @initialize(limit=st.sampled_from([0, 7]), chunk=st.sampled_from([4096, 1 << 21]))
    def start(self, limit: int, chunk: int) -> None:
        self.gpu = None if self.runtime == "host" else Emulated(self.runtime, 64 << 20)
        self.files = len(os.listdir("/proc/self/fd"))
        self.mappings = shared_mappings()
        options: dict[str, Any] = {"extent_limit": limit << 20, "chunk": chunk, "backup_folder": tempfile.gettempdir()}
        self.held = self.gpu.held() if self.gpu else None
        if self.gpu:
            self.saver = self.gpu.saver(verify=False, **options)
        else:
            self.saver = MemorySaver(limit=64 << 20, **options)
        self.contents: dict[int, tuple[Block, Keep, bytes | None]] = {}
        self.armed = False

    def attempt(self, step: Any) -> Any:
        """A step may fail only where memory is short or a fault was set."""
        try:
            return step()
        except MemoryFault as fault:
            if (self.armed or fault.cause.out_of_memory) and fault.cause.tag in [*TAGS, ""]:
                return None
            raise

    @rule(
        target=blocks,
        tag=st.sampled_from(TAGS),
        keep=st.sampled_from([Keep.NOTHING, Keep.MMAP, Keep.FILE]),
        size=st.one_of(st.integers(1, 5000), st.integers(1, 6 << 20)),
        fill=st.binary(min_size=1, max_size=3),
    )
    def allocate(self, tag: str, keep: Keep, size: int, fill: bytes) -> Block | None:
        block: Block | None = self.attempt(lambda: self.saver.allocate(size, tag, keep))
        if block is None:
            return None
        data = (fill * (size // len(fill) + 1))[:size]
        if self.attempt(lambda: block.write(data) or True) is None:
            data = None  # type: ignore[assignment]
        self.contents[block.address] = block, keep, data
        return block

    @rule(block=consumes(blocks))
    def free(self, block: Block | None) -> None:
        if block is not None:
            del self.contents[block.address]
            block.free()

    @rule(tag=st.sampled_from([*TAGS, None]))
    def pause(self, tag: str | None) -> None:
        self.attempt(lambda: self.saver.pause(tag))

    @rule(tag=st.sampled_from([*TAGS, None]))
    def resume(self, tag: str | None) -> None:
        paused = {address for address in self.contents if self.saver.state(address) == "paused"}
        self.attempt(lambda: self.saver.resume(tag))
        for address in paused:
            block, keep, _ = self.contents[address]
            if self.saver.state(address) == "active" and keep is Keep.NOTHING:
                assert self.saver.dirty(block.tag)
                self.contents[address] = block, keep, None

    @rule()
    def compact(self) -> None:
        self.attempt(self.saver.compact)

    @precondition(lambda self: self.runtime != "host")
    @rule(
        what=st.sampled_from(["create", "map", "access", "unmap", "release", "address_free", "reserve", "synchronize"]),
        nth=st.integers(1, 4),
    )
    def break_a_call(self, what: str, nth: int) -> None:
        assert self.gpu
        self.gpu.fail(what, nth, OUT_OF_MEMORY if what == "create" else 9)
        self.armed = True

    @precondition(lambda self: self.armed)
    @rule()
    def all_is_well_again(self) -> None:
        assert self.gpu
        self.gpu.calm()
        self.armed = False

    @invariant()
    def contents_are_as_written(self) -> None:
        for block, _, data in list(getattr(self, "contents", {}).values()):
            if data is not None and not self.armed and self.saver.state(block.address) == "active":
                assert block.read() == data

    @invariant()
    def blocks_do_not_overlap_and_are_counted(self) -> None:
        if not hasattr(self, "contents"):
            return
        end = 0
        for address in sorted(self.contents):
            assert address >= end
            end = address + self.contents[address][0].size
        counters = self.saver.core.counters(None)
        assert counters["blocks"] == len(self.contents)
        wanted = sum((block.size + 511) // 512 * 512 for block, _, _ in self.contents.values())
        assert counters["allocated"] == wanted <= counters["reserved"] + counters["holes"]

    @invariant()
    def the_runtime_holds_what_is_counted(self) -> None:
        if self.__dict__.get("gpu") and self.held:
            counters = self.saver.core.counters(None)
            in_use = self.gpu.held().in_use - self.held.in_use
            known = counters["reserved"] - counters["paused"]
            assert known <= in_use <= known + counters["stuck"]

    def teardown(self) -> None:
        if not hasattr(self, "contents"):
            return
        if self.gpu:
            self.gpu.calm()
            self.gpu.resize(1 << 30)
        self.armed = False
        self.saver.pause()
        while self.attempt(lambda: [self.saver.resume()]) is None:  # together they may be too many
            self.contents.popitem()[1][0].free()
        self.contents_are_kept()
        self.contents.clear()
        self.saver.close()
        assert len(os.listdir("/proc/self/fd")) <= self.files
        assert shared_mappings() == self.mappings
        if self.gpu:
            assert self.gpu.held() == self.held

    def contents_are_kept(self) -> None:
        for block, keep, data in self.contents.values():
            assert self.saver.state(block.address) == "active"
            if data is not None and keep is not Keep.NOTHING:
                assert block.read() == data


@pytest.mark.parametrize("runtime", ["host", "hip", "cuda"])
def test_any_order_of_operations(runtime: str) -> None:
    class OnRuntime(Memory):
        pass

    OnRuntime.runtime = runtime
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(OnRuntime, settings=PLAN)
