"""Shows on this machine that memory is freed, comes back, and survives faults: on the host and on emulated runtimes.

Every check gives a figure and whether it is as it must be. What the emulation cannot show is in docs/memory.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from april.memory.emulated import GRANULARITY, OUT_OF_MEMORY, Emulated
from april.memory.errors import MemoryFault
from april.memory.saver import FREED, MemorySaver

MIB = 1 << 20
REGION = 256 * MIB
CYCLES = 50
MOST_DRIFT = 0.01
BACKENDS = ("host", "hip-emulated", "cuda-emulated")
RUNTIME_FAULTS = ("reserve", "create", "map", "access", "unmap", "release", "pin", "copy_out", "copy_in", "synchronize")
AS_IT_MUST = "as it must be: "


@dataclass(slots=True)
class Result:
    """One backend. ``latency_ms_per_gib``: pause and resume, with contents kept and dropped."""

    freed_fraction: float = 0.0
    restored_fraction: float = 0.0
    content_equal: bool = False
    address_equal: bool = False
    drift_50_cycles: float = 1.0
    latency_ms_per_gib: dict[str, float] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every figure is as it must be."""
        held = all(told.startswith(AS_IT_MUST) for told in self.faults.values()) and bool(self.faults)
        sizes = self.freed_fraction >= FREED and self.restored_fraction >= FREED
        return sizes and self.content_equal and self.address_equal and self.drift_50_cycles < MOST_DRIFT and held


def run(backends: list[str]) -> dict[str, Any]:
    """``{"backends": {NAME: figures}, "ok"}``."""
    results = {name: one(name) for name in backends}
    rows = {name: {**asdict(result), "ok": result.ok} for name, result in results.items()}
    return {"backends": rows, "ok": all(result.ok for result in results.values())}


def one(name: str) -> Result:
    """All checks of one backend."""
    runtime = None if name == "host" else Emulated(name.removesuffix("-emulated"))
    result = Result()

    def make(**options: Any) -> MemorySaver:
        return MemorySaver(**options) if runtime is None else runtime.saver(**options)

    used = resident if runtime is None else lambda: runtime.held().in_use
    _cycle(make(), used, result)
    result.drift_50_cycles = _drift(make(), used)
    if runtime is None:
        result.faults = _host_faults()
    else:
        result.faults = {"out of memory in the middle of a resume": _short(runtime), **_runtime_faults(runtime)}
        result.faults["memory released and kept by the runtime"] = _hoarded(runtime)
    result.faults["freed while paused"] = _freed_while_paused(make())
    return result


def resident() -> int:
    """This process's resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _cycle(saver: MemorySaver, used: Callable[[], int], result: Result) -> None:
    """Freed and restored bytes, contents, addresses, and how long each takes."""
    pattern = os.urandom(MIB)
    for kept, name in ((True, "kept"), (False, "dropped")):
        block = saver.allocate(REGION, "weights", keep=kept)
        for at in range(0, REGION, MIB):
            block.write(pattern, at)
        address, before = block.address, used()
        started = time.perf_counter()
        saver.pause("weights")
        paused, after = time.perf_counter(), used()
        saver.resume("weights")
        resumed = time.perf_counter()
        per_gib = 1000 * (1 << 30) / REGION
        result.latency_ms_per_gib[f"pause, {name}"] = round((paused - started) * per_gib, 1)
        result.latency_ms_per_gib[f"resume, {name}"] = round((resumed - paused) * per_gib, 1)
        if kept:
            result.freed_fraction = round((before - after) / REGION, 4)
            result.content_equal = block.read() == pattern * (REGION // MIB)
            result.restored_fraction = round((used() - after) / REGION, 4)
        block.write(pattern)  # after a resume without contents it can be used all the same
        result.address_equal = block.address == address and saver.state(address) == "active"
        block.free()
    saver.close()


def _drift(saver: MemorySaver, used: Callable[[], int]) -> float:
    """How much more is in use after 50 cycles with allocations between them, as a part of what was in use."""
    blocks = [saver.allocate(8 * MIB, "weights") for _ in range(4)]
    first = 0
    for cycle in range(CYCLES + 1):
        temporary = [saver.allocate((1 + (cycle + each) % 5) * MIB // 2, "kv_cache") for each in range(6)]
        for block in [*blocks, *temporary]:
            block.write(bytes([cycle % 256]) * block.size)
        saver.pause()
        temporary.pop(cycle % 6).free()
        saver.resume()
        temporary.clear()
        saver.compact()
        if cycle == 0:
            first = used()
    drift = (used() - first) / first
    assert all(block.read() == bytes([CYCLES % 256]) * block.size for block in blocks)
    blocks.clear()
    saver.close()
    return round(max(0.0, drift), 5)


def _told(step: Callable[[], object], check: Callable[[MemoryFault], str]) -> str:
    """What happened: the line of the fault, and what ``check`` finds wrong with it or with what came after."""
    try:
        step()
    except MemoryFault as fault:
        wrong = check(fault)
        return f"wrong: {wrong}" if wrong else f"{AS_IT_MUST}{fault}"
    return "wrong: nothing was reported"


def _short(runtime: Emulated) -> str:
    saver = runtime.saver(extent_limit=GRANULARITY)
    weights, cache = saver.allocate(8 * GRANULARITY, "weights"), saver.allocate(4 * GRANULARITY, "kv_cache", keep=True)
    cache.write(b"c" * cache.size)
    saver.pause("weights")
    total = saver.stats().device_total
    runtime.resize(total - saver.stats().device_free + 3 * GRANULARITY)

    def check(fault: MemoryFault) -> str:
        cause = fault.cause
        if (cause.tag, cause.wanted, cause.free) != ("weights", weights.size, 3 * GRANULARITY):
            return f"not the tag and the bytes: {fault}"
        saver.pause("kv_cache")
        saver.resume("kv_cache")
        runtime.resize(total)
        saver.resume("weights")
        return "" if cache.read() == b"c" * cache.size else "another tag lost its contents"

    told = _told(lambda: saver.resume("weights"), check)
    runtime.resize(total)
    saver.close()
    return told


def _runtime_faults(runtime: Emulated) -> dict[str, str]:
    """Each call fails once; the operation must say so, and work when it is called again."""
    found = {}
    for what in RUNTIME_FAULTS:
        with _watched_for_leaks(runtime) as leaks:
            saver = runtime.saver()
            block = None if what == "reserve" else saver.allocate(4 * MIB, "weights")
            if block:
                block.write(b"w" * block.size)
            if what in ("create", "map", "access", "copy_in"):
                saver.pause("weights")
            steps: dict[str, Callable[[], object]] = dict.fromkeys(
                ["unmap", "release", "pin", "copy_out", "synchronize"], saver.pause
            )
            step = steps.get(what, saver.resume) if block else lambda saver=saver: saver.allocate(1, "weights")
            runtime.fail(what, 1, OUT_OF_MEMORY if what in ("create", "pin") else 1)

            def check(_: MemoryFault, step: Any = step, saver: MemorySaver = saver, block: Any = block) -> str:
                runtime.calm()
                step()
                saver.resume()
                return "contents differ" if block and block.read() != b"w" * block.size else ""

            told = _told(step, check)
            runtime.calm()
            saver.close()
        found[f"{runtime.calls[what]} ({what})"] = leaks[0] if leaks else told
    return found


@contextmanager
def _watched_for_leaks(runtime: Emulated) -> Any:
    before, leaks = runtime.held(), list[str]()
    yield leaks
    if runtime.held() != before:
        leaks.append(f"wrong: the runtime holds {runtime.held()}, and held {before}")


def _hoarded(runtime: Emulated) -> str:
    saver = runtime.saver()
    block = saver.allocate(8 * MIB, "kv_cache")
    runtime.hoard(True)
    told = _told(saver.pause, lambda fault: "" if "0 came back" in str(fault) else str(fault))
    runtime.calm()
    block.free()
    saver.close()
    return told


def _host_faults() -> dict[str, str]:
    saver = MemorySaver(limit=48 * MIB)
    weights = saver.allocate(32 * MIB, "weights")
    weights.write(b"w" * weights.size)
    saver.pause()
    cache = saver.allocate(32 * MIB, "kv_cache")

    def check(fault: MemoryFault) -> str:
        if (fault.cause.tag, fault.cause.wanted, fault.cause.free) != ("weights", 32 * MIB, 16 * MIB):
            return f"not the tag and the bytes: {fault}"
        saver.pause("kv_cache")
        saver.resume("weights")
        return "" if weights.read() == b"w" * weights.size else "contents differ"

    found = {"out of memory in a resume": _told(lambda: saver.resume("weights"), check)}
    cache.free()
    saver.close()
    nowhere = MemorySaver(backup_folder="/proc/april-has-no-folder-here")
    block = nowhere.allocate(MIB, "weights")
    block.write(b"w" * MIB)
    found["no room for a backup"] = _told(
        nowhere.pause, lambda _: "" if block.read() == b"w" * MIB else "contents differ"
    )
    nowhere.close()
    return found


def _freed_while_paused(saver: MemorySaver) -> str:
    first, second = saver.allocate(4 * MIB, "weights"), saver.allocate(4 * MIB, "weights")
    second.write(b"s" * second.size)
    address = first.address
    saver.pause()
    first.free()
    told = _told(lambda: saver.core.free(address), lambda fault: "" if "freed twice" in str(fault) else str(fault))
    saver.resume()
    if second.read() != b"s" * second.size or saver.stats().faults:
        told = f"wrong: {saver.stats().last_fault or 'contents differ'}"
    second.free()
    saver.close()
    return told
