"""A runtime that hangs ends the process with a line; one that is slow does not. Each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from april.memory.emulated import CALLS
from april.memory.watchdog import EXIT_CODE

MIB = 1 << 20


@pytest.mark.parametrize("runtime", ["hip", "cuda"])
def test_a_hanging_runtime_ends_the_process_with_a_line(runtime: str) -> None:
    """MI300X hangs, and so do graphs with registered memory (sglang#40648, torch_memory_saver#88)."""
    script = (
        "from april.memory.emulated import Emulated\n"
        f"gpu = Emulated({runtime!r})\ns = gpu.saver(hang_s=0.5)\nb = s.allocate(1 << 21, 'kv_cache')\n"
        "gpu.fail('unmap', 1, 0, delay_ms=60_000)\ns.pause('kv_cache')\nprint('went on')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert done.returncode == EXIT_CODE
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"april: error: memory pause(kv_cache) hangs in {CALLS[runtime]['unmap']} for 0.5 s")
    assert "went on" not in done.stdout


@pytest.mark.parametrize("runtime", ["hip", "cuda"])
def test_a_slow_runtime_does_not_hang(runtime: str) -> None:
    """Many calls that take longer together than one may take."""
    script = (
        "import time\nfrom april.memory.emulated import GRANULARITY, Emulated\n"
        f"gpu = Emulated({runtime!r})\ns = gpu.saver(hang_s=1.5, extent_limit=GRANULARITY)\n"
        "b = s.allocate(8 * GRANULARITY, 'kv_cache')\ngpu.fail('unmap', 0, 0, delay_ms=250)\n"
        "started = time.monotonic()\ns.pause('kv_cache')\nassert time.monotonic() - started > 1.5\nprint('went on')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr


def test_faults_from_the_environment() -> None:
    """For processes that a test does not hold, such as a server's."""
    script = (
        "from april.memory import MemorySaver, build\n"
        "s = MemorySaver(driver='hip', library=str(build.emulated('hip')))\n"
        "print(s.stats().device_total)\ns.allocate(1 << 21, 'weights')"
    )
    environment = {"APRIL_EMULATED_TOTAL": str(8 * MIB), "APRIL_EMULATED_FAIL": "hipMemMap:1:7"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50, env={**os.environ, **environment}
    )
    assert done.stdout.strip() == str(8 * MIB)
    assert "allocate(weights): hipMemMap: emulated fault (7)" in done.stderr
