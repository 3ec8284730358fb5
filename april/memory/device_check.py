"""Shows on a real device what an emulated one cannot: ``python -m april.memory.device_check [--json]``.

Needs PyTorch and g++ only, and under three minutes. Exit code 0 where all is as it must be, else 1. On a machine
without a GPU it runs over host memory, without the checks that need a device. docs/memory.md says which public report
each check is for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from april.memory.errors import MemoryFault
from april.memory.selftest import resident
from april.memory.tms import TorchMemorySaver

MIB = 1 << 20
CYCLES = 50


@dataclass
class Checks:
    """What is checked with, and what was found: name -> (as it must be, figure)."""

    device: str
    size: int
    tms: TorchMemorySaver = field(default_factory=TorchMemorySaver)
    found: dict[str, tuple[bool, str]] = field(default_factory=dict)

    @property
    def gpu(self) -> bool:
        """Whether there is one."""
        return self.device != "cpu"

    def free(self) -> int:
        """Free bytes; on a CPU what this process does not hold, from an arbitrary zero."""
        if not self.gpu:
            return -resident()
        torch.cuda.synchronize()
        return int(torch.cuda.mem_get_info()[0])

    def tensor(self, size: int, tag: str, keep: bool) -> torch.Tensor:
        """Random bytes in a region."""
        with self.tms.region(tag, enable_cpu_backup=keep):
            made = torch.empty(size, dtype=torch.uint8, device=self.device)
        return made.random_(0, 255)

    def settle(self) -> None:
        """PyTorch's caches and our pool are given back, so that only regions in use count."""
        if self.gpu:
            torch.cuda.empty_cache()
        self.tms.saver.compact()

    def tell(self, name: str, ok: bool, figure: str) -> None:
        """Notes and prints one check."""
        self.found[name] = ok, figure
        print(f"{'ok  ' if ok else 'FAIL'} {name}: {figure}", file=sys.stderr, flush=True)


def frees_and_restores(checks: Checks) -> None:
    """torch_memory_saver#83, #14: a pause must free at least 95% of the region; addresses and contents must hold."""
    for keep in (True, False):
        _frees_and_restores(checks, keep)


def _frees_and_restores(checks: Checks, keep: bool) -> None:
    tensor = checks.tensor(checks.size, "weights" if keep else "kv_cache", keep)
    copy, address = tensor.cpu().clone(), tensor.data_ptr()
    checks.settle()
    before, started = checks.free(), time.perf_counter()
    checks.tms.pause()
    paused = time.perf_counter()
    freed = (checks.free() - before) / checks.size
    middle = time.perf_counter()
    checks.tms.resume()
    resumed = time.perf_counter()
    per_gib = 1000 * (1 << 30) / checks.size
    name = "kept" if keep else "dropped"
    times = f"pause {(paused - started) * per_gib:.0f}, resume {(resumed - middle) * per_gib:.0f} ms per GiB"
    checks.tell(f"frees a region, contents {name}", freed >= 0.95, f"{freed:.1%}; {times}")
    same = tensor.data_ptr() == address and (not keep or torch.equal(tensor.cpu(), copy))
    tensor.fill_(7)
    checks.tell(f"restores a region, contents {name}", same and int(tensor[-1]) == 7, "addresses and contents")


def graphs_stay_valid(checks: Checks) -> None:
    """sglang#32718, #33124, #15246: a replay after a wake-up gives the same numbers and no NaN."""
    with checks.tms.region("weights", enable_cpu_backup=True):
        weight = torch.randn(1024, 1024, device=checks.device)
        given = torch.randn(64, 1024, device=checks.device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.softmax(given @ weight, -1)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with checks.tms.cuda_graph(graph, tag="cuda_graph", stream=stream):
        scale = torch.full((1024,), 3.0, device=checks.device)
        result = torch.softmax(given @ weight, -1) * scale
    graph.replay()
    wanted = result.cpu().clone()
    checks.settle()
    before = checks.free()
    checks.tms.pause()
    freed = checks.free() - before
    checks.tms.resume()
    graph.replay()
    equal = torch.equal(result.cpu(), wanted) and not bool(result.isnan().any())
    checks.tell("a captured graph replays after a wake-up", equal, f"{freed // MIB} MiB were freed")


def freed_while_paused(checks: Checks) -> None:
    """torch_memory_saver#92: memory of a paused tag that is freed is released once."""
    tensors = [checks.tensor(8 * MIB, "weights", True) for _ in range(3)]
    wanted = tensors[0].cpu().clone()
    checks.tms.pause()
    del tensors[1:]
    checks.settle()
    checks.tms.resume()
    faults = checks.tms.saver.stats().faults
    checks.tell("freed while paused", torch.equal(tensors[0].cpu(), wanted) and not faults, f"{faults} faults")


def out_of_memory(checks: Checks) -> None:
    """A resume that finds too little memory says so, and works when there is enough."""
    tensor = checks.tensor(checks.size, "weights", True)
    wanted = tensor.cpu().clone()
    checks.settle()
    checks.tms.pause()
    free = checks.free()
    hog: Any = torch.empty(free - checks.size // 2, dtype=torch.uint8, device=checks.device)
    try:
        checks.tms.resume()
        told = ""
    except MemoryFault as fault:
        told = str(fault) if fault.cause.out_of_memory and fault.cause.tag == "weights" else ""
    del hog
    checks.settle()
    checks.tms.resume()
    equal = torch.equal(tensor.cpu(), wanted)
    checks.tell("out of memory in a resume", bool(told) and equal, told or "nothing was reported")


def does_not_creep(checks: Checks) -> None:
    """slime#579, #638, #651, #1136; torch_memory_saver#89, #90, #93: neither device nor host memory grows."""
    weights = checks.tensor(checks.size // 4, "weights", True)
    first: tuple[int, int] = (0, 0)
    for cycle in range(CYCLES + 1):
        cache = checks.tensor((1 + cycle % 4) * 16 * MIB, "kv_cache", False)
        checks.tms.pause()
        checks.tms.resume()
        del cache
        checks.settle()
        if cycle == 0:
            first = checks.free(), resident()
    device, host = first[0] - checks.free(), resident() - first[1]
    allowed = 0.01 * checks.size
    told = f"device {device / MIB:+.1f} MiB, host {host / MIB:+.1f} MiB"
    checks.tell(f"{CYCLES} cycles do not creep", device <= allowed and host <= allowed, told)
    del weights


def every_device(checks: Checks) -> None:
    """torch_memory_saver#9, #43, #65: several devices in one process, and their granularity."""
    from april.memory import gpu
    from april.memory.saver import MemorySaver

    told, right = [], True
    for number in range(torch.cuda.device_count()):
        saver = MemorySaver(driver=gpu.driver(), device=number, extent_limit=gpu.extent_limit())
        block = saver.allocate(3 * MIB, "weights", keep=True)
        block.write(bytes([number + 1]) * block.size)
        saver.pause()
        saver.resume()
        right = right and block.read() == bytes([number + 1]) * block.size
        told.append(f"{number}: {saver.core.granularity() // 1024} KiB")
        block.free()
        saver.close()
    checks.tell("every device", right and bool(told), "granularity " + ", ".join(told))


ANYWHERE: list[Callable[[Checks], None]] = [frees_and_restores, freed_while_paused, does_not_creep]
ON_A_GPU: list[Callable[[Checks], None]] = [every_device, out_of_memory, graphs_stay_valid]


def run(size: int) -> dict[str, Any]:
    """All checks over regions of ``size`` bytes: ``{"device", "checks": {NAME: {"ok", "figure"}}, "ok"}``."""
    gpu = torch.cuda.is_available()
    checks = Checks("cuda" if gpu else "cpu", size)
    for check in [*ANYWHERE, *(ON_A_GPU if gpu else [])]:
        try:
            check(checks)
        except Exception as error:  # the next check says more about a device than a traceback of this one does
            checks.tell(check.__name__, False, f"{type(error).__name__}: {error}")
            with contextlib.suppress(MemoryFault):
                checks.tms.resume()
    rows = {name: {"ok": ok, "figure": figure} for name, (ok, figure) in checks.found.items()}
    what = torch.cuda.get_device_name() if gpu else "host memory: no GPU here"
    return {"device": what, "torch": torch.__version__, "checks": rows, "ok": all(row["ok"] for row in rows.values())}


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m april.memory.device_check", description=__doc__)
    parser.add_argument("--mib", type=int, default=4096, help="size of the largest region (default: 4096)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    given = parser.parse_args(argv)
    found = run(given.mib * MIB)
    if given.json:
        print(json.dumps(found, indent=1))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
