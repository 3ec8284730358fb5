"""The gates of torch_memory_saver: its build, the driver releases under it, and what must be set for it.

Only colocated runs use it (weights, KV cache and graphs leave the device while the trainer works).
"""

from __future__ import annotations

from dataclasses import dataclass

from .check import Check, Status, fail, ok, unknown, warn
from .facts import Facts
from .numbers import release
from .reading import Unread
from .reading.packages import Saver, Torch

NAME = "memory saver"
SOURCE = "python -m pip install --no-build-isolation git+https://github.com/fzyzcjy/torch_memory_saver"
OURS = "or let april train choose april.memory (--memory-backend), once python -m april.memory.device_check is ok here"
BUILD = f"with hipcc on PATH: TMS_PLATFORM=hip {SOURCE}"
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
CHUNKED_BELOW = (7,)


@dataclass(frozen=True)
class Gate:
    """ROCm releases from ``first`` to before ``end`` with a known fault, by the issues that say so."""

    first: tuple[int, ...]
    end: tuple[int, ...]
    status: Status
    says: str
    remedy: str
    source: str


GATES = (
    Gate(
        (0,),
        (6, 3, 4),
        Status.WARN,
        "older than what torch_memory_saver supports; hipMemCreate fails there with several GPUs",
        "use ROCm 6.3.4, or 7.0",
        "torch_memory_saver#9, #52",
    ),
    Gate(
        (6, 4, 0),
        (6, 4, 1),
        Status.FAIL,
        "hipMemRelease does not give memory back, so a pause frees nothing",
        "use ROCm 6.4.2 or 7.0, or train without colocation",
        "ROCm/hip#3781, torch_memory_saver#14",
    ),
    Gate(
        (6, 4, 1),
        (6, 4, 2),
        Status.WARN,
        "the fix of hipMemRelease was confirmed for 6.4.2 only",
        "use ROCm 6.4.2 or 7.0, or see in a short run that a pause frees memory",
        "ROCm/hip#3781",
    ),
    Gate(
        (7, 2),
        (7, 3),
        Status.FAIL,
        "the runtime keeps mapped memory while its addresses are reserved, so a pause frees nothing",
        "use ROCm 7.0, or a libhsa-runtime64 rebuilt with ROCm/rocm-systems#4363, as miles' image has it",
        "torch_memory_saver#83, miles#1680",
    ),
    Gate(
        (7, 14),
        (99,),
        Status.WARN,
        "HIP refuses sizes that are not multiples of its granularity",
        f"use a torch_memory_saver that holds #109; {BUILD}",
        "torch_memory_saver#109",
    ),
)


def checks(facts: Facts) -> list[Check]:
    """The checks of this module."""
    if facts.device.name == "cpu":
        return [ok(NAME, "not needed on a CPU: april.memory releases memory there (april memory selftest)")]
    found = [_build(facts)]
    if facts.device.name == "rocm":
        found += [_release(facts), _chunks(facts)]
    return [*found, _allocator(facts), _graph_registration(facts)]


def _build(facts: Facts) -> Check:
    saver, torch = facts.packages.saver, facts.packages.torch
    version = facts.packages.versions.get("torch-memory-saver", "")
    rocm = facts.device.name == "rocm"
    install = BUILD if rocm else "python -m pip install torch_memory_saver"
    if saver is None:
        return fail(NAME, "torch_memory_saver is not installed; SGLang and the host import it", install)
    if isinstance(saver, Unread):
        return unknown(NAME, saver.why, install)
    if rocm:  # the wheel's library without a suffix is a copy of CUDA's: it fails for want of libcuda
        if not saver.hip:
            return fail(NAME, f"{version} carries CUDA's libraries only", f"{BUILD}; {OURS}")
        return ok(NAME, f"{version}, built for HIP")
    runtime = torch.runtime if isinstance(torch, Torch) else None
    major = (release(runtime or "") or (0,))[0]
    have = " and ".join(f"CUDA {each}" for each in sorted(saver.cuda_majors)) or "no CUDA"
    if major and major not in saver.cuda_majors:
        said = f"{version} has libraries for {have}, torch is for CUDA {major}"
        return fail(NAME, said, f"with nvcc of CUDA {major} on PATH: TMS_CUDA_MAJOR={major} {SOURCE}")
    return ok(NAME, f"{version}, with libraries for {have}")


def _rocm(facts: Facts) -> str | Unread:
    """ROCm's release: as installed, else HIP's of torch, which counts as ROCm does."""
    rocm, torch = facts.device.rocm, facts.packages.torch
    if isinstance(rocm, str):
        return rocm
    if isinstance(torch, Torch) and torch.build == "rocm" and torch.runtime:
        return ".".join(map(str, release(torch.runtime)[:2]))
    return rocm if isinstance(rocm, Unread) else Unread("neither /opt/rocm nor torch names a release")


def _release(facts: Facts) -> Check:
    name, rocm = "memory saver: ROCm", _rocm(facts)
    if isinstance(rocm, Unread):
        return unknown(name, rocm.why, "set ROCM_PATH; 6.4.0 and 7.2 are known to free nothing on a pause")
    found = release(rocm)
    if len(found) < 3 and any(gate.first[:2] == found and len(gate.first) == 3 and gate.first[2] for gate in GATES):
        return unknown(
            name, f"{rocm}, of which some releases free nothing on a pause", "set ROCM_PATH to ROCm's folder"
        )
    for gate in GATES:
        if gate.first <= found < gate.end:
            return Check(name, gate.status, f"{rocm}: {gate.says} ({gate.source})", gate.remedy)
    return ok(name, f"{rocm}: no known fault")


def _chunks(facts: Facts) -> Check:
    """hipMemCreate of HIP 6 fails for large sizes; below 7 the library maps chunks of 2 MiB (its csrc/macro.h)."""
    name, saver, rocm = "memory saver: chunks", facts.packages.saver, _rocm(facts)
    if isinstance(rocm, Unread):
        return unknown(name, rocm.why, "below ROCm 7 the library must map memory in chunks of 2 MiB")
    if not isinstance(saver, Saver) or not saver.hip:
        return unknown(name, "there is no library for HIP", BUILD)
    old = release(rocm) < CHUNKED_BELOW
    if old and not saver.chunked:
        said = f"ROCm {rocm} needs memory mapped in chunks of 2 MiB, and this library was built without (#14, #52)"
        return fail(name, said, f"build it again on this release; {BUILD}")
    if saver.chunked and not old:
        said = f"built for ROCm 6: chunks of 2 MiB, which ROCm {rocm} does not need"
        return warn(name, said, f"build it again on this release; {BUILD}")
    return ok(name, "2 MiB, as ROCm 6 needs (512 handles a GiB)" if old else "none, as ROCm 7 needs none")


def _allocator(facts: Facts) -> Check:
    """torch_memory_saver raises with expandable segments (#25), since its pause would free nothing (#24)."""
    name = "memory saver: allocator"
    for variable in ALLOCATOR:
        if "expandable_segments:true" in facts.environ.get(variable, "").replace(" ", "").lower():
            said = (
                f"{variable} turns on expandable segments, which the memory saver refuses (torch_memory_saver#24, #25)"
            )
            return fail(name, said, f"unset {variable}, or train without colocation")
    return ok(name, "no expandable segments")


def _graph_registration(facts: Facts) -> Check:
    """torch_memory_saver#88, sglang#40648: graphs replay with registrations of memory that a pause has released."""
    name, value = "memory saver: NCCL_GRAPH_REGISTER", facts.environ.get("NCCL_GRAPH_REGISTER")
    if value == "0":
        return ok(name, "0")
    said = "with graphs a resume can hang (torch_memory_saver#88, sglang#40648)"
    if value is None:
        return ok(name, "not set: april train and april launch set it to 0; export it for runs that they do not start")
    return fail(name, f"{value}: {said}", "export NCCL_GRAPH_REGISTER=0")
