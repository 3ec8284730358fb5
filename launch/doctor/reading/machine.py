"""The machine under it: cores, memory, shared memory, disks, NUMA, limits."""

from __future__ import annotations

import os
import re
import resource
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import Unread, number, text

UNLIMITED = resource.RLIM_INFINITY
NO_CGROUP_LIMIT = 2**60
"""A cgroup's "no limit" is a huge number in version 1."""


@dataclass(frozen=True)
class Space:
    """A file system, in bytes, and whether we may write to the place."""

    path: str
    free: int
    total: int
    writable: bool = True


@dataclass(frozen=True)
class Machine:
    """Sizes in bytes; ``limit`` values are (soft, hard), -1 without a limit."""

    cores: int
    memory_total: int | Unread
    memory_free: int | Unread
    """What the kernel calls available, and no more than the cgroup leaves."""
    memory_limit: int | None
    """Of the cgroup; None without one."""
    shm: Space | Unread
    disks: Mapping[str, Space | Unread]
    """By use: ``runs``, ``temporary``, ``cache``."""
    numa_nodes: int | Unread
    numa_balancing: int | Unread
    open_files: tuple[int, int]
    locked_memory: tuple[int, int]


def read(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """The facts; the kernel's files are looked up below ``root``."""
    total, available = _memory(root)
    limit, used = _cgroup(root)
    if limit is not None and isinstance(available, int):
        available = min(available, max(0, limit - used))
    cache = environ.get("HF_HOME") or environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_total=total,
        memory_free=available,
        memory_limit=limit,
        shm=space(root / "dev" / "shm"),
        disks={
            "runs": space(Path.cwd()),
            "temporary": space(Path(tempfile.gettempdir())),
            "cache": space(Path(cache)),
        },
        numa_nodes=_nodes(root),
        numa_balancing=number(root / "proc" / "sys" / "kernel" / "numa_balancing"),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        locked_memory=resource.getrlimit(resource.RLIMIT_MEMLOCK),
    )


def space(path: Path) -> Space | Unread:
    """The file system of ``path``, or of what exists above it."""
    place = path
    while not place.exists() and place != place.parent and path.name != "shm":
        place = place.parent
    try:
        found = shutil.disk_usage(place)
    except OSError as error:
        return Unread(f"{place}: {error.strerror or error}")
    return Space(str(path), found.free, found.total, os.access(place, os.W_OK | os.X_OK))


def _memory(root: Path) -> tuple[int | Unread, int | Unread]:
    found = text(root / "proc" / "meminfo")
    if isinstance(found, Unread):
        return found, found
    sizes = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", found, re.MULTILINE)}
    missing = Unread("/proc/meminfo names no such size")
    return sizes.get("MemTotal", missing), sizes.get("MemAvailable", missing)


def _cgroup(root: Path) -> tuple[int | None, int]:
    """Limit and use of this process's cgroup, or of the root's as a container sees it; version 2, then 1."""
    own = text(root / "proc" / "self" / "cgroup")
    paths = {
        line.split(":", 2)[1]: line.split(":", 2)[2].lstrip("/")
        for line in str(own).splitlines()
        if line.count(":") > 1
    }
    base = root / "sys" / "fs" / "cgroup"
    for folder, limit_name, use_name in (
        (base / paths.get("", ""), "memory.max", "memory.current"),
        (base, "memory.max", "memory.current"),
        (base / "memory" / paths.get("memory", ""), "memory.limit_in_bytes", "memory.usage_in_bytes"),
        (base / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = number(folder / limit_name), number(folder / use_name)
        if isinstance(limit, int) and limit < NO_CGROUP_LIMIT:
            return limit, used if isinstance(used, int) else 0
    return None, 0


def _nodes(root: Path) -> int | Unread:
    folder = root / "sys" / "devices" / "system" / "node"
    found = [entry for entry in folder.glob("node*") if entry.name[4:].isdigit()]
    return len(found) if found else Unread(f"{folder} lists no node")
