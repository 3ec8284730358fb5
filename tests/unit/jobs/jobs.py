"""Jobs that the tests render."""

from __future__ import annotations

from typing import Any

from april.launch.jobs.job import Job

HARDWARE = {"nvidia": "h100x8", "amd": "mi300x-8", "cpu": "cpu"}
COMMAND = (
    "april",
    "train",
    "--hf-checkpoint",
    "/models/qwen3-4b",
    "--load",
    "/runs/demo/save",
    "--save",
    "/runs/demo/save",
)


def job(**changes: Any) -> Job:
    """A job of two nodes with 8 AMD devices, with ``changes``."""
    vendor = changes.pop("vendor", "amd")
    given: dict[str, Any] = {
        "name": "demo",
        "command": COMMAND,
        "environment": {"NCCL_IB_HCA": "mlx5_0,mlx5_1"},
        "nodes": 2,
        "gpus_per_node": 8,
        "hardware": HARDWARE[vendor],
        "vendor": vendor,
        "image": "registry.example/april:1",
        "run_dir": "/runs/demo",
        "walltime": "24:00:00",
        "mounts": ("/models", "/data:/prompts"),
    }
    return Job(**{**given, **changes})
