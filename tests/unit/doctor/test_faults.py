"""Every FAIL and every WARN, each provoked by one change to a healthy machine."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from april.launch.doctor import main
from april.launch.doctor.check import Check, Status
from april.launch.doctor.facts import Facts, pinned
from april.launch.doctor.numbers import GIB, MIB
from april.launch.doctor.reading import Unread
from april.launch.doctor.reading.fits import Fit
from april.launch.doctor.reading.machine import Space
from april.launch.doctor.reading.packages import Saver, Torch
from april.launch.doctor.reading.sockets import Holder

MachineOf = Callable[[str, Mapping[str, object]], Facts]
LOST = Unread("permission denied")
WARN, FAIL = Status.WARN, Status.FAIL
INSTALLED = {
    **{name: pin.version for name, pin in pinned().items()},
    "april-rollout": "0.1.0",
    "packaging": "26.0",
    "psutil": "7.2.2",
    "jinja2": "3.1.6",
    "pyyaml": "6.0.2",
    "wrapt": "1.17.0",
    "torch-memory-saver": "0.0.10",
}


def without(*names: str, **others: str) -> dict[str, object]:
    """What is installed, less some distributions, with some other versions."""
    kept = {name: version for name, version in INSTALLED.items() if name not in names}
    return {"packages.versions": {**kept, **others}}


def host(**fields: object) -> dict[str, object]:
    return {f"host.{name}": value for name, value in fields.items()}


def disks(**spaces: object) -> dict[str, object]:
    good = Space("/tmp", 500 * GIB, 900 * GIB)
    return {"machine.disks": {"runs": good, "temporary": good, "cache": good, **spaces}}


Row = tuple[str, dict[str, object], str, Status, str]
"""Device, change, name of the check, its status, a part of its detail."""

VERSIONS: list[Row] = [
    ("cpu", {"packages.python": (3, 12, 1)}, "python", WARN, "the lock files are for 3.11"),
    ("cuda", {"packages.python": (3, 13, 0)}, "python", FAIL, "3.10 to 3.12 serve"),
    ("cpu", without("april-rollout"), "april", FAIL, "not installed in this Python"),
    ("rocm", without("wrapt"), "april", FAIL, "wrapt >= 1.16 is needed, none is installed"),
    ("cpu", without(psutil="5.8"), "april", FAIL, "psutil >= 5.9 is needed, 5.8"),
    ("cpu", {"packages.plugins": frozenset()}, "april", FAIL, "entry point is not registered"),
    ("cpu", host(fault="/x is no slime tree"), "host", FAIL, "/x is no slime tree"),
    ("cpu", host(name=None, megatron=None), "host", WARN, "neither slime nor miles is here"),
    ("cpu", host(version="0.0.3"), "host", WARN, "pinned is 0.0.2"),
    ("cpu", host(name="slime", version="0.4.0"), "host", WARN, "slime 0.4.0 in /hosts/miles; pinned is 0.3.1"),
    ("cpu", host(megatron="0.17.0"), "megatron-core", WARN, "pinned is 0.16.0rc0"),
    (
        "cuda",
        {**host(name="slime", megatron=None), **without(**{"megatron-core": "0.15.0"})},
        "megatron-core",
        WARN,
        "0.15.0",
    ),
    ("cpu", without("sglang"), "sglang", FAIL, "not installed"),
    ("cuda", without("ray"), "ray", FAIL, "not installed"),
    ("cuda", without("torch"), "torch", FAIL, "not installed"),
    ("cpu", without(sglang="0.5.16"), "sglang", WARN, "0.5.16; pinned is 0.5.15.post1"),
    ("cpu", without(torch="2.12.0+cpu"), "torch", WARN, "2.12.0+cpu; pinned is 2.13.0"),
    ("cuda", without(transformers="5.13.0"), "transformers", WARN, "5.13.0"),
    ("cpu", without(numpy="2.1.0"), "numpy", FAIL, "slime asserts numpy 1.x"),
    ("cpu", without(numpy="1.26.3"), "numpy", WARN, "1.26.3"),
    ("cpu", without(fastapi="0.129.0"), "fastapi", FAIL, "no partial rollout is collected"),
]
DEVICE: list[Row] = [
    ("cpu", {"device.cpu_flags": LOST}, "accelerator", WARN, "unknown: permission denied"),
    ("cuda", {"device.gpus": ()}, "accelerator", FAIL, "no GPU is listed"),
    ("rocm", {"device.gpus": ()}, "accelerator", FAIL, "no GPU is listed"),
    ("cpu", {"packages.torch": LOST}, "torch build", WARN, "unknown"),
    ("cpu", {"packages.torch": None}, "torch build", FAIL, "not installed"),
    ("cpu", {"packages.torch": Torch("2.13.0", "cuda", "13.0")}, "torch build", WARN, "without a GPU"),
    ("cuda", {"packages.torch": Torch("2.13.0+cpu", "cpu")}, "torch build", FAIL, "cpu on a cuda machine"),
    ("rocm", {"packages.torch": Torch("2.13.0", "cuda", "13.0")}, "torch build", FAIL, "cuda 13.0 on a rocm"),
    ("cuda", {"device.driver": LOST}, "NVIDIA driver", WARN, "unknown"),
    ("cuda", {"device.driver": None}, "NVIDIA driver", FAIL, "no driver is loaded"),
    ("cuda", {"device.libcuda": False}, "NVIDIA driver", FAIL, "libcuda.so.1 does not load"),
    ("cuda", {"device.driver": "515.65.01"}, "NVIDIA driver", FAIL, "CUDA 12.9, which needs 525"),
    ("cuda", {"packages.torch": Torch("2.13.0", "cuda", "13.0")}, "NVIDIA driver", FAIL, "which needs 580"),
    ("rocm", {"device.kfd": False}, "device files", FAIL, "/dev/kfd is missing"),
    ("rocm", {"device.kfd_access": False}, "device files", FAIL, "may not be read and written"),
    ("rocm", {"device.render_nodes": ()}, "device files", FAIL, "no render node"),
    ("rocm", {"device.render_denied": ("renderD128", "renderD129")}, "device files", FAIL, "no render node of"),
    ("rocm", {"device.render_denied": ("renderD129",)}, "device files", WARN, "no access to renderD129"),
    ("rocm", {"device.rocm": LOST}, "ROCm", WARN, "unknown"),
    ("rocm", {"device.rocm": None}, "ROCm", WARN, "no /opt/rocm"),
    ("rocm", {"device.rocm": "6.4.2"}, "ROCm", WARN, "torch was built for HIP 7.0"),
    ("rocm", {"device.gpus": ("gfx90a", "gfx942")}, "GPU target", WARN, "gfx90a: upstream runs"),
    ("rocm", {"device.kernel_options": LOST}, "kernel options", WARN, "unknown"),
    ("rocm", {"device.kernel_options": "iommu=pt"}, "kernel options", WARN, "pci=realloc=off not set"),
]
ROCM, CHUNKS = "memory saver: ROCm", "memory saver: chunks"
REGISTER = "memory saver: NCCL_GRAPH_REGISTER"
MEMORY_SAVER: list[Row] = [
    ("cuda", {"packages.saver": None}, "memory saver", FAIL, "not installed"),
    ("cuda", {"packages.saver": LOST}, "memory saver", WARN, "unknown"),
    ("cuda", {"packages.saver": Saver(frozenset({13}))}, "memory saver", FAIL, "for CUDA 13, torch is for CUDA 12"),
    ("rocm", {"packages.saver": Saver(frozenset({12, 13}))}, "memory saver", FAIL, "CUDA's libraries only"),
    ("rocm", {"device.rocm": "6.3.1"}, ROCM, WARN, "torch_memory_saver#9, #52"),
    ("rocm", {"device.rocm": "6.4.0"}, ROCM, FAIL, "ROCm/hip#3781, torch_memory_saver#14"),
    ("rocm", {"device.rocm": "6.4.1"}, ROCM, WARN, "confirmed for 6.4.2 only"),
    ("rocm", {"device.rocm": "7.2.0"}, ROCM, FAIL, "torch_memory_saver#83"),
    ("rocm", {"device.rocm": "7.2.4"}, ROCM, FAIL, "torch_memory_saver#83"),
    ("rocm", {"device.rocm": "10.0.0"}, ROCM, WARN, "torch_memory_saver#109"),
    ("rocm", {"device.rocm": LOST, "packages.torch": None}, ROCM, WARN, "permission denied"),
    ("rocm", {"device.rocm": None, "packages.torch": None}, ROCM, WARN, "names a release"),
    (
        "rocm",
        {"device.rocm": None, "packages.torch": Torch("2.8.0", "rocm", "6.4.43482-0f2d60242")},
        ROCM,
        WARN,
        "6.4, of which some releases free nothing",
    ),
    ("rocm", {"device.rocm": None, "packages.torch": None}, CHUNKS, WARN, "names a release"),
    ("rocm", {"packages.saver": None}, CHUNKS, WARN, "no library for HIP"),
    ("rocm", {"device.rocm": "6.4.2"}, CHUNKS, FAIL, "chunks of 2 MiB"),
    ("rocm", {"packages.saver": Saver(hip=True, chunked=True)}, CHUNKS, WARN, "built for ROCm 6"),
    *(
        (
            device,
            {"environ": {variable: "max_split_size_mb:64,expandable_segments:True"}},
            "memory saver: allocator",
            FAIL,
            f"{variable} turns on",
        )
        for device, variable in (
            ("cuda", "PYTORCH_CUDA_ALLOC_CONF"),
            ("cuda", "PYTORCH_ALLOC_CONF"),
            ("rocm", "PYTORCH_HIP_ALLOC_CONF"),
        )
    ),
    ("rocm", {"environ": {"NCCL_GRAPH_REGISTER": "1"}}, REGISTER, FAIL, "1: with graphs a resume can hang"),
]
FULL = Space("/tmp", 1 * GIB, 900 * GIB)
DENIED = Space("/data", 500 * GIB, 900 * GIB, writable=False)
MACHINE: list[Row] = [
    ("cpu", {"machine.cores": 1}, "cores", WARN, "take turns"),
    ("cpu", {"machine.memory_free": LOST}, "memory", WARN, "unknown"),
    ("cpu", {"machine.memory_free": 1 * GIB, "machine.memory_limit": 8 * GIB}, "memory", FAIL, "8.0 GiB by the cgroup"),
    ("cpu", {"machine.memory_free": 5 * GIB}, "memory", WARN, "5.0 GiB free of 256.0 GiB"),
    ("cpu", {"machine.shm": LOST}, "shared memory", FAIL, "no /dev/shm"),
    ("cpu", {"machine.shm": Space("/dev/shm", GIB, GIB, False)}, "shared memory", FAIL, "may not be written"),
    ("cpu", {"machine.shm": Space("/dev/shm", 64 * MIB, 64 * MIB)}, "shared memory", WARN, "64 MiB of 64 MiB"),
    ("cuda", {"machine.shm": Space("/dev/shm", 64 * MIB, 64 * MIB)}, "shared memory", FAIL, "too little for NCCL"),
    ("rocm", {"machine.shm": Space("/dev/shm", 8 * GIB, 8 * GIB)}, "shared memory", WARN, "Ray wants 10 GB"),
    *(("cpu", disks(**{use: LOST}), f"disk: {use}", WARN, "unknown") for use in ("runs", "temporary", "cache")),
    ("cpu", disks(runs=DENIED), "disk: runs", WARN, "may not be written"),
    ("cpu", disks(temporary=DENIED), "disk: temporary", FAIL, "may not be written"),
    ("cpu", disks(cache=DENIED), "disk: cache", WARN, "may not be written"),
    ("cpu", disks(runs=FULL), "disk: runs", FAIL, "a run needs 2.0 GiB"),
    ("cpu", disks(temporary=FULL), "disk: temporary", FAIL, "a run needs 2.0 GiB"),
    ("cpu", disks(cache=FULL), "disk: cache", WARN, "room for few checkpoints"),
    ("cpu", disks(temporary=Space("/tmp", 40 * GIB, 900 * GIB)), "disk: temporary", WARN, "over 95% full"),
    ("cpu", disks(temporary=Space("/" + "x" * 30, 99 * GIB, 99 * GIB)), "socket path", FAIL, "107 is the most"),
    ("cpu", disks(temporary=LOST), "socket path", WARN, "unknown"),
    ("rocm", {"machine.numa_balancing": 1}, "NUMA", WARN, "auto-balancing is on"),
    ("rocm", {"machine.numa_balancing": LOST}, "NUMA", WARN, "unknown"),
    ("cpu", {"machine.open_files": (1024, 2048)}, "open files", WARN, "at most 2048"),
    ("cuda", {"machine.locked_memory": (8 * MIB, 8 * MIB)}, "locked memory", WARN, "limited to 8 MiB"),
    ("cpu", {"sockets.ephemeral": LOST}, "ports", WARN, "unknown"),
    ("cpu", {"sockets.in_use": LOST}, "ports", WARN, "unknown"),
    ("cpu", {"sockets.in_use": 28200}, "ports", FAIL, "32 of 32768 to 60999"),
    ("cpu", {"sockets.in_use": 27000}, "ports", WARN, "few for Ray's workers"),
    ("cpu", {"sockets.held": {6379: Holder(12, "redis-server")}}, "port 6379", WARN, "redis-server (process 12)"),
    ("cpu", {"sockets.held": {8265: Holder()}}, "port 8265", WARN, "a process of another user"),
]
REST: list[Row] = [
    ("cpu", {"environ": {"SGLANG_PLUGINS": "theirs"}}, "SGLANG_PLUGINS", WARN, "leaves the overlay's plugin out"),
    ("cpu", {"sockets.ray_address": "h:1", "sockets.ray_answer": "refused"}, "Ray cluster", FAIL, "refused"),
    ("cpu", {"sockets.ray_address": "http://h:8265"}, "Ray cluster", WARN, "a job server"),
    ("cpu", {"sockets.rays": {7: "raylet", 6: "gcs_server"}}, "Ray on this node", WARN, "1 run(s): raylet 7"),
    ("cpu", {"environ": {"http_proxy": "http://p:3"}}, "proxy", WARN, "no_proxy lacks 127.0.0.1 and localhost"),
    ("cpu", {"environ": {"ALL_PROXY": "p", "NO_PROXY": "localhost"}}, "proxy", WARN, "no_proxy lacks 127.0.0.1:"),
    ("cuda", {"environ": {"CUDA_VISIBLE_DEVICES": ""}}, "CUDA_VISIBLE_DEVICES", FAIL, "hides every GPU"),
    ("rocm", {"environ": {"HIP_VISIBLE_DEVICES": "-1"}}, "HIP_VISIBLE_DEVICES", FAIL, "hides every GPU"),
    ("rocm", {"environ": {"ROCR_VISIBLE_DEVICES": "0,1"}}, "HIP_VISIBLE_DEVICES", FAIL, "alone: Ray refuses it"),
    (
        "rocm",
        {"environ": {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0"}},
        "HIP_VISIBLE_DEVICES",
        WARN,
        "the second counts within the first",
    ),
    (
        "rocm",
        {"environ": {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0"}},
        "HIP_VISIBLE_DEVICES",
        WARN,
        "both mean the same",
    ),
    (
        "rocm",
        {"environ": {"RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "0"}},
        "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES",
        WARN,
        "not set",
    ),
    ("cuda", {"environ": {"CUDA_LAUNCH_BLOCKING": "1"}}, "launch blocking", WARN, "CUDA_LAUNCH_BLOCKING is set"),
]
CHANGED = Fit("p", "miles", ("driver", "engine"), fault="changed: f is 1", remedy="look")
PATCHES: list[Row] = [
    ("cpu", {"fits": LOST}, "patches", WARN, "unknown: permission denied"),
    ("cpu", {"fits": (CHANGED,)}, "patches: engine", FAIL, "f is 1"),
    ("cpu", {"fits": (CHANGED,)}, "patches: driver", FAIL, "f is 1"),
    ("cpu", {"fits": (replace(CHANGED, optional=True),)}, "patches: engine", WARN, "skipped: changed"),
    ("cpu", {"fits": (replace(CHANGED, processes=()),)}, "calls: miles", FAIL, "f is 1"),
]
OUTSIDE = (Path(__file__).name, "check.py", "<string>")
ROWS = [*VERSIONS, *DEVICE, *MEMORY_SAVER, *MACHINE, *REST, *PATCHES]


@pytest.mark.parametrize(("device", "changes", "name", "status", "says"), ROWS)
def test_a_fault_is_named_with_a_remedy(
    machine_of: MachineOf, device: str, changes: dict[str, object], name: str, status: Status, says: str
) -> None:
    found = {check.name: check for _, checks in main.examine(machine_of(device, changes)) for check in checks}
    assert found[name].status is status, found[name]
    assert says in found[name].detail
    assert found[name].remedy


def fault_calls() -> set[tuple[str, int]]:
    """File and line of every call in the doctor that makes a fault."""
    found = set()
    for path in Path(main.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if name in ("warn", "fail", "unknown", "refuse", "Check") and path.name not in ("check.py", "main.py"):
                found.add((path.name, node.lineno))
    return found


def test_the_table_reaches_every_call_that_makes_a_fault(
    machine_of: MachineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = set()

    def note(check: Check) -> None:
        frame = inspect.currentframe()
        while frame and (check.status is not Status.OK) and Path(frame.f_code.co_filename).name in OUTSIDE:
            frame = frame.f_back
        if frame and check.status is not Status.OK:
            reached.add((Path(frame.f_code.co_filename).name, frame.f_lineno))

    monkeypatch.setattr(Check, "__post_init__", note)
    for device, changes, *_ in ROWS:
        main.examine(machine_of(device, changes))
    assert len(fault_calls()) > 80
    assert fault_calls() - reached == set()


GOOD: list[tuple[str, dict[str, object], str, str]] = [
    ("cpu", {"environ": {"SGLANG_PLUGINS": "theirs, april"}}, "SGLANG_PLUGINS", "theirs, april"),
    ("cpu", {"device.cpu_flags": frozenset({"amx_bf16"})}, "accelerator", "bf16 by amx_bf16"),
    ("cpu", {"device.cpu_flags": frozenset()}, "accelerator", "without AMX or AVX512_BF16"),
    ("cpu", {"packages.saver": Saver(frozenset({12}))}, "memory saver", "not needed on a CPU"),
    ("cuda", {"environ": {"NCCL_GRAPH_REGISTER": None}}, REGISTER, "april train and april launch set it to 0"),
    ("cuda", without(torch="2.9.1+cu129"), "torch", "2.9.1+cu129, your own build"),
    ("cuda", {"packages.python": (3, 12, 3)}, "python", "3.12.3"),
    ("cuda", host(name="slime", version="624b824", megatron=None, root="/slime"), "host", "slime 624b824 in /slime"),
    ("rocm", {"device.rocm": None}, ROCM, "7.0: no known fault"),
    ("rocm", {"device.rocm": "6.4.2", "packages.saver": Saver(hip=True, chunked=True)}, CHUNKS, "512 handles a GiB"),
    ("rocm", {"device.rocm": "6.4.2"}, ROCM, "6.4.2: no known fault"),
    ("cpu", {"environ": {"http_proxy": "p", "no_proxy": "localhost,127.0.0.1"}}, "proxy", "spares this machine"),
    ("cpu", {"environ": {"http_proxy": "p", "no_proxy": "*"}}, "proxy", "spares this machine"),
    ("cpu", {"sockets.held": {6379: Holder(3, "gcs_server")}}, "port 6379", "held by Ray"),
    ("cpu", {"sockets.ray_address": "h:1", "sockets.rays": {7: "raylet"}}, "Ray on this node", "1 run(s)"),
    ("cpu", {"machine.numa_balancing": 1}, "NUMA", "auto-balancing on"),
    ("cpu", {"machine.open_files": (1024, -1)}, "open files", "65536 within reach"),
    ("cuda", {"environ": {"CUDA_VISIBLE_DEVICES": "0,1"}}, "CUDA_VISIBLE_DEVICES", "0,1"),
    ("rocm", {"environ": {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}}, "HIP_VISIBLE_DEVICES", "0"),
]


@pytest.mark.parametrize(("device", "changes", "name", "says"), GOOD)
def test_what_is_no_fault(machine_of: MachineOf, device: str, changes: dict[str, object], name: str, says: str) -> None:
    found = {check.name: check for _, checks in main.examine(machine_of(device, changes)) for check in checks}
    assert found[name].status is Status.OK, found[name]
    assert says in found[name].detail


@pytest.mark.parametrize("device", ["cpu", "cuda", "rocm"])
def test_a_healthy_machine_is_all_ok_and_no_name_comes_twice(machine_of: MachineOf, device: str) -> None:
    checks = [check for _, found in main.examine(machine_of(device, {})) for check in found]
    assert [check for check in checks if check.status is not Status.OK] == []
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
