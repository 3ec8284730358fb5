"""What every process of a job gets on one vendor's devices; what the job itself names wins."""

from __future__ import annotations

from april.launch.jobs.job import Job
from april.launch.train import cpu

COMMON = {
    "NCCL_GRAPH_REGISTER": "0",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "PYTHONUNBUFFERED": "1",
    "RAY_raylet_start_wait_time_s": "120",
}
"""Buffers that a captured graph has registered with NCCL or RCCL are gone after a pause, and the next collective hangs
(sglang#40648, torch_memory_saver#88). One connection is what Megatron's overlap relies on, and slime sets it too.
Ray gives a node 30 s to start, which a busy or a large one exceeds."""

VENDOR: dict[str, dict[str, str]] = {
    "nvidia": {},
    "amd": {
        "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1",
        "HIP_FORCE_DEV_KERNARG": "1",
        "HSA_NO_SCRATCH_RECLAIM": "1",
        "NCCL_MIN_NCHANNELS": "112",
    },
    "cpu": {name: value for name, value in cpu.ENVIRONMENT.items() if name != "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"},
}
"""AMD: Ray leaves HIP_VISIBLE_DEVICES as the job sets it, since slime counts devices by their node's numbers; the other
three are those of SGLang's own ROCm images for MI300. A CPU: what ``april train`` sets in its own cluster, without the
loopback address for all of Ray."""

RESOURCE = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
"""What the vendors' device plugins for Kubernetes call a device."""

LABELS = {
    "a100x8": ("nvidia.com/gpu.product", ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-40GB")),
    "h100x8": ("nvidia.com/gpu.product", ("NVIDIA-H100-80GB-HBM3",)),
    "h200x8": ("nvidia.com/gpu.product", ("NVIDIA-H200",)),
    "mi300x-8": ("amd.com/gpu.device-id", ("74a1", "74b5")),
    "mi325x-8": ("amd.com/gpu.device-id", ("74a5", "74b9")),
    "mi355x-8": ("amd.com/gpu.device-id", ("75a3", "75b3")),
}
"""Node labels: of NVIDIA's GPU feature discovery, of AMD's node labeller (physical and virtual functions by PCI device
id; product names are missing on some nodes). Other hardware: any node with the vendor's devices."""


def of(job: Job) -> dict[str, str]:
    """The environment of every process of ``job``, on every node."""
    own = {"SLIME_DIR": job.slime_dir} if job.slime_dir is not None else {}
    devices = ",".join(str(index) for index in range(job.gpus_per_node))
    visible = {"HIP_VISIBLE_DEVICES": devices} if job.vendor == "amd" else {}
    return {**COMMON, **VENDOR[job.vendor], **visible, **own, **job.environment}
