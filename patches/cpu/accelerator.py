"""A CPU in slime's accelerator registry (its official hook, ``register_accelerator``)."""

from __future__ import annotations

import contextlib
import os
import types
from types import ModuleType
from typing import Any

from april.patches.cpu import malloc
from april.patches.cpu.streams import CpuEvent, CpuStream
from april.patches.patcher import Patcher


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Register ``cpu``; ``module`` is ``slime.utils.accelerator``."""
    del patcher  # slime's registry has no removal
    module.register_accelerator(
        "cpu", lambda: _make(module.Accelerator), lambda: True, priority=-1, communication_backends=("gloo",)
    )


def _make(base: type) -> Any:
    """An instance of slime's ``Accelerator`` for a CPU; sizes in bytes."""
    import psutil
    import torch

    def resident(self: Any, device: Any = None) -> int:
        return int(psutil.Process().memory_info().rss)

    def memory(self: Any, device: Any = None) -> tuple[int, int]:
        machine = psutil.virtual_memory()
        return machine.available, machine.total

    def properties(self: Any, device: Any = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            name="cpu", uuid="cpu-0", total_memory=psutil.virtual_memory().total, multi_processor_count=os.cpu_count()
        )

    def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        return None

    members: dict[str, Any] = {
        "name": "cpu",
        "device_type": "cpu",
        "communication_backend_name": "gloo",
        "Stream": CpuStream,
        "Event": CpuEvent,
        "is_available": lambda self: True,
        "device": lambda self, index=None: torch.device("cpu"),
        "device_name": lambda self, index=None: "cpu",
        "set_device": nothing,
        "current_device": lambda self: "cpu",
        "device_count": lambda self: int(os.environ.get("APRIL_CPU_DEVICES", "1")),
        "synchronize": nothing,
        "current_stream": lambda self, device=None: CpuStream(),
        "default_stream": lambda self, device=None: CpuStream(),
        "stream": lambda self, stream: contextlib.nullcontext(),
        "empty_cache": lambda self: malloc.give_back(),
        "mem_get_info": memory,
        "memory_allocated": resident,
        "memory_reserved": resident,
        "get_device_properties": properties,
        "autocast": lambda self, *args, **kwargs: torch.autocast("cpu", *args, **kwargs),
        "manual_seed": lambda self, seed: torch.manual_seed(seed),
        "manual_seed_all": lambda self, seed: torch.manual_seed(seed),
        "distributed_device_id": nothing,
        "supports": lambda self, capability: capability == "bf16",
    }
    return type("CpuAccelerator", (base,), members)()
