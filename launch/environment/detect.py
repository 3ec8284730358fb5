"""Which device this machine has: ``cpu``, ``cuda`` or ``rocm``. Reads files and asks the drivers' tools; imports no
torch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .errors import SetupError

DEVICES = ("cpu", "cuda", "rocm")


class Device(NamedTuple):
    """The device and the sign by which it was known."""

    name: str
    why: str


def ask(command: list[str]) -> str:
    """What ``command`` prints; empty when it is absent, fails or takes more than ten seconds."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def detect(
    choice: str,
    root: Path = Path("/"),
    ask: Callable[[list[str]], str] = ask,
    torch_build: Callable[[], str] = lambda: "",
) -> Device:
    """The device named by ``choice``, or found when it is ``auto``.

    ``torch_build`` answers ``cuda``, ``rocm`` or ``cpu`` for the user's torch; it decides where both vendors' devices
    are present. Raises SetupError (exit code 2) for an unknown choice.
    """
    if choice in DEVICES:
        return Device(choice, "as asked for")
    if choice != "auto":
        raise SetupError(f"unknown device {choice!r}: one of auto, {', '.join(DEVICES)}", exit_code=2)
    nvidia = _nvidia(root, ask)
    amd = _amd(root, ask)
    if nvidia and amd:
        return Device("rocm", amd) if torch_build() == "rocm" else Device("cuda", nvidia)
    if nvidia:
        return Device("cuda", nvidia)
    if amd:
        return Device("rocm", amd)
    return Device("cpu", "no NVIDIA or AMD device found")


def _nvidia(root: Path, ask: Callable[[list[str]], str]) -> str:
    gpus = root / "proc" / "driver" / "nvidia" / "gpus"
    if gpus.is_dir() and any(gpus.iterdir()):
        return "/proc/driver/nvidia lists a GPU"
    return "nvidia-smi lists a GPU" if "GPU 0" in ask(["nvidia-smi", "-L"]) else ""


def _amd(root: Path, ask: Callable[[list[str]], str]) -> str:
    if not (root / "dev" / "kfd").exists():
        return ""
    if (root / "opt" / "rocm").is_dir():
        return "/dev/kfd and /opt/rocm are there"
    return "rocminfo lists a GPU" if "gfx" in ask(["rocminfo"]) else ""
