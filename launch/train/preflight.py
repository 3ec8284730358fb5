"""What can be known to be wrong in a second, before anything heavy starts."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from april.errors import UsageError

FOLDERS = ("--hf-checkpoint", "--load", "--ref-load")
FILES = ("--prompt-data",)
PORTS = ("--sglang-router-port",)
DISK_BYTES = 2 * 1024**3


def device(given: str) -> str:
    """``given``, or what this machine has.

    Raises:
        UsageError: when a GPU is asked for and there is none.
    """
    found = "rocm" if Path("/dev/kfd").exists() else "cuda" if Path("/proc/driver/nvidia/version").exists() else "cpu"
    if given in ("cuda", "rocm") and found != given:
        raise UsageError(f"--device {given}: this machine has none ({found} found); use --device {found}")
    return found if given == "auto" else given


def check(flags: list[str], device: str) -> None:
    """Check the paths, ports and disk that the flags name.

    Raises:
        UsageError: one line for the first thing that is wrong.
    """
    for flag, value in values(flags):
        if flag in FOLDERS and not Path(value).is_dir() and (device == "cpu" or flag != "--hf-checkpoint"):
            raise UsageError(f"{flag} {value}: no such folder; give a Hugging Face or Megatron checkpoint folder")
        if flag == "--hf-checkpoint" and Path(value).is_dir() and not Path(value, "config.json").is_file():
            raise UsageError(f"{flag} {value}: no config.json in it; give a Hugging Face model folder")
        if flag in FILES and not Path(value.partition("@[")[0]).exists():
            raise UsageError(f"{flag} {value}: no such file; give a JSONL or parquet file of prompts")
        if flag in PORTS:
            _check_port(flag, value)
    if "--hf-checkpoint" not in {flag for flag, _ in values(flags)}:
        raise UsageError("--hf-checkpoint is missing: give the model's Hugging Face folder")
    free = shutil.disk_usage(".").free
    if free < DISK_BYTES:
        raise UsageError(f"only {free / 1024**3:.1f} GiB of disk are free here; {DISK_BYTES / 1024**3:.0f} are needed")


def values(flags: list[str]) -> list[tuple[str, str]]:
    """Each flag with the value after it (or after its ``=``); later ones win and come last."""
    pairs = []
    for index, token in enumerate(flags):
        if token.startswith("--") and "=" in token:
            pairs.append((*token.split("=", 1),))
        elif token.startswith("--") and index + 1 < len(flags) and not flags[index + 1].startswith("--"):
            pairs.append((token, flags[index + 1]))
    return [(pair[0], pair[1]) for pair in pairs]


def _check_port(flag: str, value: str) -> None:
    if not value.isdigit() or not 0 < int(value) < 65536:
        raise UsageError(f"{flag} {value}: not a port number (1 to 65535)")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", int(value))) == 0:
            raise UsageError(f"{flag} {value}: the port is in use; leave the flag out and a free one is found")
