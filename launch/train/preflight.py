"""What can be known to be wrong in a second, before anything heavy starts."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

from april.errors import UsageError

FOLDERS = ("--hf-checkpoint", "--ref-load")
"""``--load`` may be missing where it is ``--save``: a first start, which falls back to ``--ref-load``."""
WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")
CLUSTER_TIMEOUT_S = 3.0
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
    """Check the folders, files and addresses that the flags name.

    Raises:
        UsageError: one line for the first thing that is wrong.
    """
    given = dict(values(flags))
    if "--hf-checkpoint" not in given:
        raise UsageError("--hf-checkpoint is missing: give the model's Hugging Face folder")
    for flag in FOLDERS:
        if flag in given and not Path(given[flag]).is_dir() and (device == "cpu" or flag != "--hf-checkpoint"):
            raise UsageError(f"{flag} {given[flag]}: no such folder; give a Hugging Face or Megatron checkpoint folder")
    _check_load(given.get("--load"), given.get("--save"))
    if Path(given["--hf-checkpoint"]).is_dir():
        _check_model(Path(given["--hf-checkpoint"]))
    if "--prompt-data" in given:
        _check_prompts(given)
    if "--sglang-router-port" in given and "--sglang-router-ip" not in given:
        _check_port("--sglang-router-port", given["--sglang-router-port"])
    if address := os.environ.get("RAY_ADDRESS"):
        _check_cluster(address)


def _check_load(load: str | None, save: str | None) -> None:
    """The host would start from scratch, without a word, where a run was to go on."""
    if load is None or Path(load).is_dir() or (save is not None and Path(load).resolve() == Path(save).resolve()):
        return
    raise UsageError(
        f"--load {load}: no such folder; to go on from a run name its checkpoints, for a new run leave it out or give "
        "the folder of --save"
    )


def check_disk(run_dir: str | None) -> None:
    """Check that there is room where the run will write.

    Raises:
        UsageError: with what is free and what is needed.
    """
    place = Path(run_dir or ".").resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < DISK_BYTES:
        raise UsageError(f"{place}: {free / 1024**3:.1f} GiB of disk are free, {DISK_BYTES / 1024**3:.0f} are needed")


def _check_model(folder: Path) -> None:
    try:
        json.loads((folder / "config.json").read_text())
    except OSError as error:
        raise UsageError(f"--hf-checkpoint {folder}: no config.json in it; give a Hugging Face model folder") from error
    except ValueError as error:
        raise UsageError(f"--hf-checkpoint {folder}: config.json is no JSON ({error})") from error
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        raise UsageError(f"--hf-checkpoint {folder}: no weights in it ({' or '.join(WEIGHTS)})")


def _check_prompts(given: dict[str, str]) -> None:
    """The file, and the keys of the first line of a JSONL file; what the host reads from a slice ``path@[a:b]`` too."""
    path = Path(given["--prompt-data"].partition("@[")[0])
    if not path.is_file():
        raise UsageError(f"--prompt-data {path}: no such file; give a JSONL or parquet file of prompts")
    if path.suffix != ".jsonl":
        return
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    try:
        row = json.loads(first)
    except ValueError as error:
        what = f"its first line is no JSON ({error})" if first.strip() else "it is empty"
        raise UsageError(f"--prompt-data {path}: {what}; give one JSON object a line") from error
    for flag, key in (("--input-key", given.get("--input-key", "input")), ("--label-key", given.get("--label-key"))):
        if key is not None and key not in row:
            raise UsageError(f"--prompt-data {path}: its first line has no {key!r}; {flag} may be {', '.join(row)}")


def _check_cluster(address: str) -> None:
    if address in ("auto", "local") or "://" in address:
        return
    name, _, port = address.rpartition(":")
    try:
        socket.create_connection((name, int(port)), timeout=CLUSTER_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise UsageError(f"RAY_ADDRESS {address}: no Ray cluster answers ({error}); unset it to start one") from error


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
