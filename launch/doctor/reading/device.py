"""The accelerator: drivers, device files, releases. No driver is initialised; a tool that is absent is a fact too."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from april.launch.environment import detect

from . import Unread, text

TOOL_LIMIT_S = 5.0
CPU_FLAGS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")


@dataclass(frozen=True)
class Accelerator:
    """What the machine has for ``name`` (cpu, cuda, rocm); ``why`` says how it was known."""

    name: str
    why: str
    cpu_flags: frozenset[str] | Unread = frozenset()
    gpus: tuple[str, ...] = ()
    """Names of NVIDIA GPUs, or targets (gfx942) of AMD GPUs."""
    driver: str | Unread | None = None
    """NVIDIA's kernel driver, or amdgpu's version; None where neither is loaded."""
    libcuda: bool = False
    rocm: str | Unread | None = None
    """ROCm's release; None without an /opt/rocm."""
    kfd: bool = False
    kfd_access: bool = False
    render_nodes: tuple[str, ...] = ()
    render_denied: tuple[str, ...] = ()
    kernel_options: str | Unread = ""


def read(choice: str, torch_build: str, environ: Mapping[str, str], root: Path = Path("/")) -> Accelerator:
    """The facts for ``--device choice``; files are looked up below ``root``."""
    found = detect.detect(choice, root, _ask, lambda: torch_build)
    base = Accelerator(found.name, found.why, _cpu_flags(root))
    if found.name == "cuda":
        return replace(base, gpus=_nvidia_gpus(root), driver=_nvidia_driver(root), libcuda=_loads("libcuda.so.1"))
    if found.name == "rocm":
        nodes = sorted((root / "dev" / "dri").glob("renderD*"))
        kfd = root / "dev" / "kfd"
        return replace(
            base,
            gpus=_amd_gpus(root),
            driver=_amdgpu(root),
            rocm=_rocm(root, environ),
            kfd=kfd.exists(),
            kfd_access=os.access(kfd, os.R_OK | os.W_OK),
            render_nodes=tuple(node.name for node in nodes),
            render_denied=tuple(node.name for node in nodes if not os.access(node, os.R_OK | os.W_OK)),
            kernel_options=text(root / "proc" / "cmdline"),
        )
    return base


def gfx(target: int) -> str:
    """The name of a target as the kernel numbers it: 90402 is gfx942, 90010 is gfx90a."""
    return f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}"


def _ask(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOOL_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _cpu_flags(root: Path) -> frozenset[str] | Unread:
    found = text(root / "proc" / "cpuinfo")
    if isinstance(found, Unread):
        return found
    line = re.search(r"^flags\s*:(.*)$", found, re.MULTILINE)
    words = set(line[1].split()) if line else set()
    return frozenset(flag for flag in CPU_FLAGS if flag in words)


def _nvidia_driver(root: Path) -> str | Unread | None:
    path = root / "proc" / "driver" / "nvidia" / "version"
    if not path.exists():
        return _ask(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]).partition("\n")[0] or None
    found = text(path)
    if isinstance(found, Unread):
        return found
    number = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", found)
    return number[1] if number else Unread(f"{path} names no version")


def _nvidia_gpus(root: Path) -> tuple[str, ...]:
    names = []
    for path in sorted((root / "proc" / "driver" / "nvidia" / "gpus").glob("*/information")):
        found = text(path)
        model = None if isinstance(found, Unread) else re.search(r"^Model:\s*(.*)$", found, re.MULTILINE)
        names.append(model[1] if model else "unknown model")
    return tuple(names) or tuple(_ask(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines())


def _amd_gpus(root: Path) -> tuple[str, ...]:
    """The targets of the nodes of the kernel's topology that are GPUs (a CPU's target is 0)."""
    targets = []
    for path in sorted((root / "sys" / "class" / "kfd" / "kfd" / "topology" / "nodes").glob("*/properties")):
        found = text(path)
        number = None if isinstance(found, Unread) else re.search(r"^gfx_target_version (\d+)$", found, re.MULTILINE)
        if number and int(number[1]):
            targets.append(gfx(int(number[1])))
    return tuple(targets)


def _amdgpu(root: Path) -> str | None:
    """The version of the out-of-tree driver; the kernel's own has none but is there."""
    module = root / "sys" / "module" / "amdgpu"
    found = text(module / "version")
    return found if isinstance(found, str) else "the kernel's own" if module.is_dir() else None


def _rocm(root: Path, environ: Mapping[str, str]) -> str | Unread | None:
    home = Path(environ["ROCM_PATH"]) if environ.get("ROCM_PATH") else root / "opt" / "rocm"
    if not home.is_dir():
        return None
    found = text(home / ".info" / "version")
    return found if isinstance(found, Unread) else found.partition("-")[0]
