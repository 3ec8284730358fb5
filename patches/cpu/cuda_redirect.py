"""Sends Megatron's direct uses of ``torch.cuda`` to the CPU, in the train actor's process only.

Megatron (and miles) name the device in factories (``device="cuda"`` or an index), move modules and tensors with
``.cuda()``, read and set the CUDA random state, compare ``tensor.type()`` with ``torch.cuda.FloatTensor`` and keep
streams and events.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from april.memory.tms import host_memory
from april.patches.cpu import malloc
from april.patches.cpu.streams import CpuEvent, CpuStream
from april.patches.patcher import Patcher

FACTORIES = [
    "arange",
    "as_tensor",
    "empty",
    "empty_like",
    "empty_strided",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
]


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Redirect; ``module`` (the host's train actor) only marks the process."""
    del module
    import torch

    _redirect_runtime(torch, patcher)
    for name in FACTORIES:
        patcher.replace(torch, name, on_cpu(getattr(torch, name)))
    _redirect_tensors(torch, patcher)


def is_cuda(device: Any) -> bool:
    """Whether ``device`` names a GPU: ``cuda``, ``cuda:1``, a ``torch.device`` of that type, or an index."""
    if device is None or isinstance(device, bool):
        return False
    return isinstance(device, int) or str(device).startswith("cuda")


def on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    """The factory with ``device=cuda`` read as CPU and pinned memory as pageable."""

    @functools.wraps(factory)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            with host_memory():
                return factory(*args, **{**kwargs, "pin_memory": False})
        return factory(*args, **kwargs)

    return redirected


def _redirect_runtime(torch: Any, patcher: Patcher) -> None:
    import psutil

    def constant(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    def free_and_total(*args: Any, **kwargs: Any) -> tuple[int, int]:
        machine = psutil.virtual_memory()
        return machine.available, machine.total

    runtime: dict[str, Any] = {
        "current_device": constant("cpu"),
        "set_device": constant(None),
        "synchronize": constant(None),
        "empty_cache": lambda: malloc.give_back(),
        "ipc_collect": constant(None),
        "reset_peak_memory_stats": constant(None),
        "Stream": CpuStream,
        "Event": CpuEvent,
        "current_stream": lambda *args, **kwargs: CpuStream(),
        "default_stream": lambda *args, **kwargs: CpuStream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "get_device_capability": constant((8, 0)),
        "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *args, **kwargs: torch.set_rng_state(state),
        "manual_seed": lambda seed: torch.manual_seed(seed),
        "mem_get_info": free_and_total,
        "memory_allocated": constant(0),
        "max_memory_allocated": constant(0),
        "memory_reserved": constant(0),
        "max_memory_reserved": constant(0),
    }
    for name, value in runtime.items():
        patcher.replace(torch.cuda, name, value)
    patcher.replace(torch.cuda.nvtx, "range_push", constant(0))
    patcher.replace(torch.cuda.nvtx, "range_pop", constant(0))
    patcher.add(torch._C, "_host_emptyCache", constant(None))


def _redirect_tensors(torch: Any, patcher: Patcher) -> None:
    tensor = torch.Tensor
    move, kind = tensor.to, tensor.type

    @functools.wraps(move)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and not isinstance(args[0], (torch.dtype, tensor)) and is_cuda(args[0]):
            args = ("cpu", *args[1:])
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return move(self, *args, **kwargs)

    @functools.wraps(kind)
    def type_(self: Any, dtype: Any = None, **kwargs: Any) -> Any:
        if dtype is None:
            return kind(self).replace("torch.", "torch.cuda.")
        return kind(self, dtype, **kwargs)

    patcher.replace(tensor, "to", to)
    patcher.replace(tensor, "type", type_)
    patcher.replace(tensor, "cuda", lambda self, *args, **kwargs: self)
    patcher.replace(tensor, "pin_memory", lambda self, *args, **kwargs: self)
    patcher.replace(torch.nn.Module, "cuda", lambda self, *args, **kwargs: self)
