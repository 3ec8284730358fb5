"""Compiles the native kernels with the machine's C++ compiler, once for each version of their source."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from april.errors import AprilError
from april.memory.build import compiler

SOURCES = Path(__file__).parent / "native"
NAME = "libspecrollout_kernels.so"
NEEDED = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-maybe-uninitialized"]
FLAGS += [f"-m{name.replace('_', '')}" for name in NEEDED] + ["-mfma", "-mf16c"]
BUILD_S = 300


def missing() -> list[str]:
    """What this CPU lacks of what the kernels need (Linux on x86-64)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return list(NEEDED)
    flags = next((line.split(":")[1].split() for line in lines if line.startswith("flags")), [])
    return [name for name in NEEDED if name not in flags]


@functools.cache
def library() -> Path:
    """The library, compiled where it is missing; in ``$XDG_CACHE_HOME/april`` (``~/.cache/april``).

    Raises:
        AprilError: when there is no compiler, it fails, or the cache cannot be written.
    """
    sources = sorted(SOURCES.glob("*.cpp"))
    digest = hashlib.sha256(" ".join([*FLAGS, os.environ.get("CXX", "")]).encode())
    for path in [*sources, *sorted(SOURCES.glob("*.h"))]:
        digest.update(path.name.encode() + path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "april"
    target = cache / f"kernels-{digest.hexdigest()[:12]}" / NAME
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may build at once: each in a folder of its own, then renamed.
        with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as folder:
            _compile([*compiler(), *FLAGS, "-o", f"{folder}/{NAME}", *map(str, sources)])
            os.replace(f"{folder}/{NAME}", target)
    except OSError as error:
        raise AprilError(f"{target}: {error.strerror or error}: set XDG_CACHE_HOME to a folder for it") from error
    return target


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
    except subprocess.TimeoutExpired:
        raise AprilError(f"{command[0]} took more than {BUILD_S} s to compile the drafter's kernels") from None
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
        raise AprilError(f"{command[0]} cannot compile the drafter's kernels: {said}")
