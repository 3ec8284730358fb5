"""Which memory saver a run uses: chosen when its flags are read, in place in each process from its start."""

from __future__ import annotations

import os
from collections.abc import Collection

from april.launch.doctor.numbers import release
from april.launch.doctor.reading import packages
from april.memory import build, install

RELEASING = frozenset({"--colocate", "--offload", "--offload-train", "--offload-rollout"})
"""The hosts' flags of runs that release memory between the phases."""

REGISTER = "NCCL_GRAPH_REGISTER"


def chosen(backend: str, device: str, flags: Collection[str]) -> str | None:
    """``april`` or ``tms``; None for a run that releases nothing and was not told which.

    Raises:
        UsageError: for a backend that the device does not have.
    """
    if backend == "auto" and not RELEASING.intersection(flags):
        return None
    return install.choose(backend, device, _cuda_major())


def prepare(name: str | None) -> None:
    """Compile what the processes will load; does nothing where it is there.

    Raises:
        AprilError: where it cannot be compiled.
    """
    if name == "april":
        build.core()
        build.stand_in_for_preload()


def environment(name: str | None) -> dict[str, str]:
    """Tells every process of the run.

    Buffers that a captured graph has registered with NCCL or RCCL are gone after a pause, and the next collective hangs
    (sglang#40648, torch_memory_saver#88): in a run that pauses, none is registered unless the user says so.
    """
    register = {REGISTER: os.environ.get(REGISTER, "0")} if name else {}
    return {install.CHOSEN: name or "", **register}


def _cuda_major() -> int | None:
    """Of the installed torch, which is not imported for it."""
    torch = packages.read(()).torch
    runtime = torch.runtime if isinstance(torch, packages.Torch) and torch.build == "cuda" else None
    return (release(runtime or "") or (None,))[0]
