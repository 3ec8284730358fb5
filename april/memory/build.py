"""Compiles the core with the machine's C++ compiler: once for each version of its sources, no toolkit needed.

The result is kept in ``$XDG_CACHE_HOME/april`` (``~/.cache/april``). Several processes may build at once: each writes
a file of its own and renames it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from april.errors import AprilError

SOURCES = Path(__file__).parent / "native"
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra"]
CORE = "libapril_memory.so"
PRELOAD = "torch_memory_saver_hook_mode_preload.abi3.so"
EMULATED = {"hip": ("libamdhip64.so", ["-DHIP"]), "cuda": ("libcuda.so", [])}
BUILD_S = 300


@functools.cache
def core() -> Path:
    """The core's library, compiled where it is missing.

    Raises:
        AprilError: when there is no compiler, it fails, or the cache cannot be written.
    """
    return _built(CORE, sorted(SOURCES.glob("*.cpp")), ["-ldl"])


@functools.cache
def emulated(runtime: str) -> Path:
    """The stand-in for the library of ``hip`` or ``cuda``; raises as :func:`core` does."""
    name, flags = EMULATED[runtime]
    return _built(name, sorted((SOURCES / "emulated").glob("*.cpp")), flags)


@functools.cache
def stand_in_for_preload() -> Path:
    """An empty library under the file name that hosts preload (native/preload/nothing.cpp says why)."""
    return _built(PRELOAD, sorted((SOURCES / "preload").glob("*.cpp")), ["-nostdlib"])


def compiler() -> list[str]:
    """``$CXX``, else ``g++`` or ``c++``; raises AprilError where there is none."""
    given = shlex.split(os.environ.get("CXX", ""))
    for words in [given] if given else [["g++"], ["c++"]]:
        if shutil.which(words[0]):
            return words
    missing = f"CXX={given[0]} is not there" if given else "there is no g++"
    raise AprilError(f"april.memory compiles its core, and {missing}: install g++ (apt-get install g++), or set CXX")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "april"


def _built(name: str, sources: list[Path], flags: list[str]) -> Path:
    digest = hashlib.sha256(" ".join([*FLAGS, *flags, os.environ.get("CXX", ""), sys.platform]).encode())
    for path in sorted([*sources, *SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + path.read_bytes())
    target = _cache() / f"native-{digest.hexdigest()[:12]}" / name
    if target.is_file():
        return target
    words = compiler()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as folder:
            _compile([*words, *FLAGS, "-o", f"{folder}/{name}", *map(str, sources), *flags])
            os.replace(f"{folder}/{name}", target)
    except OSError as error:
        raise AprilError(f"{target}: {error.strerror or error}: set XDG_CACHE_HOME to a folder for it") from error
    return target


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
    except subprocess.TimeoutExpired:
        raise AprilError(f"{command[0]} took more than {BUILD_S} s to compile april.memory's core") from None
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
        raise AprilError(f"{command[0]} cannot compile april.memory's core: {said}")
