"""What must be there before the first step: the platform, a compiler, room on the disk, the right to write."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from .errors import SetupError

GIB = 1 << 30


def check_platform(system: str = "", machine: str = "") -> None:
    """Raise SetupError unless this is Linux on x86-64: SGLang has no other wheels that the lock could name."""
    found = (system or platform.system(), machine or platform.machine())
    if found != ("Linux", "x86_64"):
        raise SetupError(f"Linux on x86_64 is needed for the CPU environment; this is {found[0]} on {found[1]}")


def check_compiler() -> None:
    """Raise SetupError when no C compiler is found: one locked package (pycosat) comes as source only."""
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        raise SetupError("a C compiler is needed to build one package (pycosat): install gcc")


def check_writable(folder: Path) -> None:
    """Raise SetupError when ``folder`` cannot be written."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SetupError(
            f"no permission to write in {folder}: run it as the owner of that folder, or check out into one of yours"
        )


def check_disk(folder: Path, needed: float) -> None:
    """Raise SetupError when the disk of ``folder`` has fewer than ``needed`` GiB free."""
    free = shutil.disk_usage(folder).free / GIB
    if free < needed:
        raise SetupError(
            f"not enough room: {free:.1f} GiB are free on the disk of {folder}, set-up needs {needed:.1f} GiB"
        )
