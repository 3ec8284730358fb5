"""Facts of healthy machines, from which each test takes away one thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from april.launch.doctor.facts import Facts, pinned
from april.launch.doctor.numbers import GIB
from april.launch.doctor.reading.device import Accelerator
from april.launch.doctor.reading.fits import Fit
from april.launch.doctor.reading.hosts import FoundHost
from april.launch.doctor.reading.machine import UNLIMITED, Machine, Space
from april.launch.doctor.reading.packages import Packages, Saver, Torch
from april.launch.doctor.reading.sockets import Sockets

ACCELERATORS = {
    "cpu": Accelerator("cpu", "no NVIDIA or AMD device found", frozenset({"avx2", "avx512_bf16"})),
    "cuda": Accelerator("cuda", "listed", gpus=("NVIDIA H200",) * 8, driver="570.86.15", libcuda=True),
    "rocm": Accelerator(
        "rocm",
        "listed",
        gpus=("gfx942",) * 8,
        driver="6.12.12",
        rocm="7.0.2",
        kfd=True,
        kfd_access=True,
        render_nodes=("renderD128", "renderD129"),
        kernel_options="root=/dev/sda1 pci=realloc=off iommu=pt",
    ),
}
TORCHES = {
    "cpu": Torch("2.13.0+cpu", "cpu"),
    "cuda": Torch("2.13.0+cu129", "cuda", "12.9"),
    "rocm": Torch("2.13.0+rocm7.0", "rocm", "7.0.51831-a3e329ad8"),
}
SAVERS = {"cpu": None, "cuda": Saver(frozenset({12, 13})), "rocm": Saver(hip=True)}
ENVIRONMENTS = {
    "cpu": {},
    "cuda": {"NCCL_GRAPH_REGISTER": "0"},
    "rocm": {"NCCL_GRAPH_REGISTER": "0", "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1"},
}


FITS = (
    Fit("miles-metrics", "miles", ("rollout_manager", "train_actor"), optional=True, remedy="r"),
    Fit("miles-gloo", "miles", ("train_actor",), remedy="r"),
    Fit("engine-abort", "sglang", remedy="r"),
)


def healthy(device: str) -> Facts:
    """A machine of which every check is OK."""
    pins = pinned()
    disk = Space("/somewhere", 500 * GIB, 900 * GIB)
    versions = {name: pin.version for name, pin in pins.items() if name not in ("python", "slime", "miles-rl")}
    ours = {
        "april-rollout": "0.1.0",
        "packaging": "26.0",
        "psutil": "7.2.2",
        "jinja2": "3.1.6",
        "pyyaml": "6.0.2",
        "wrapt": "1.17.0",
        "torch-memory-saver": "0.0.10",
    }
    packages = Packages(
        (3, 11, 7), "/venv", {**versions, **ours}, frozenset({"april"}), TORCHES[device], SAVERS[device]
    )
    machine = Machine(
        cores=16,
        memory_total=256 * GIB,
        memory_free=200 * GIB,
        memory_limit=None,
        shm=Space("/dev/shm", 128 * GIB, 128 * GIB),
        disks={"runs": disk, "temporary": Space("/tmp", 500 * GIB, 900 * GIB), "cache": disk},
        numa_nodes=2,
        numa_balancing=0,
        open_files=(1024, 1048576),
        locked_memory=(UNLIMITED, UNLIMITED),
    )
    return Facts(
        pins=pins,
        packages=packages,
        host=FoundHost("miles", pins["miles-rl"].version, "/hosts/miles", pins["megatron-core"].version),
        device=ACCELERATORS[device],
        machine=machine,
        sockets=Sockets((32768, 60999), 50, {}, {}, None, None),
        environ=ENVIRONMENTS[device],
        fits=FITS,
    )


def altered(facts: Facts, changes: Mapping[str, object]) -> Facts:
    """``facts`` with other values: ``machine.cores`` names a field of a part, ``environ`` adds to what is there."""
    for path, value in changes.items():
        part, _, field = path.partition(".")
        if not field and part != "environ":
            facts = replace(facts, **{part: value})
        elif part == "environ":
            assert isinstance(value, dict)
            facts = replace(facts, environ={**facts.environ, **value})
        else:
            facts = replace(facts, **{part: replace(getattr(facts, part), **{field: value})})
    return facts


@pytest.fixture
def machine_of() -> Callable[[str, Mapping[str, object]], Facts]:
    """Makes the facts of a healthy machine, but for some changes."""
    return lambda device, changes: altered(healthy(device), changes)
