"""PyTorch's tensors over a region's memory, on a CPU, where PyTorch has no pluggable allocator.

Inside a region, factory calls give tensors over blocks of the region; a block is freed with the storage that it is
under. Results of other operations are ordinary tensors: what persists (parameters, caches, optimizer states) comes
from factories. Such a storage cannot be resized, and touching a tensor while its tag is paused ends the process
(SIGSEGV), as an illegal access does on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MethodDescriptorType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from april.memory.block import Block
from april.memory.saver import MemorySaver

Fill = Callable[[torch.Tensor, tuple[Any, ...], dict[str, Any]], Any]


def _nothing(made: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Contents are undefined."""


def _zero(made: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    made.zero_()


def _one(made: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    made.fill_(1)


def _value(made: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    made.fill_(kwargs["fill_value"] if "fill_value" in kwargs else args[-1])


_TENSOR = torch.Tensor
_FILLS: dict[Any, Fill] = {
    **dict.fromkeys([torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted], _nothing),
    **dict.fromkeys([_TENSOR.new_empty, _TENSOR.new_empty_strided], _nothing),
    **dict.fromkeys([torch.zeros, torch.zeros_like, _TENSOR.new_zeros], _zero),
    **dict.fromkeys([torch.ones, torch.ones_like, _TENSOR.new_ones], _one),
    **dict.fromkeys([torch.full, torch.full_like, _TENSOR.new_full], _value),
}
# PyTorch's own: somebody may have put a function that reads "cuda" as "cpu" in the place of each.
SHAPED: dict[Any, Fill] = {inspect.unwrap(factory): fill for factory, fill in _FILLS.items()}
"""Factories whose result is known by its shape and a value: made in the region at once."""

_FUNCTIONS = "rand rand_like randn randn_like randint randint_like randperm normal arange linspace logspace eye tensor"
_METHODS = "clone new_tensor contiguous to cpu float double half bfloat16"
COMPUTED: frozenset[Any] = frozenset(
    [torch.clone, torch.tril, torch.triu]
    + [inspect.unwrap(getattr(torch, name)) for name in _FUNCTIONS.split()]
    + [inspect.unwrap(getattr(_TENSOR, name)) for name in _METHODS.split()]
)
"""Factories whose result is computed and then moved into the region, where its storage is new."""


def over(block: Block, like: torch.Tensor) -> torch.Tensor:
    """A tensor with the shape, strides and type of ``like`` over ``block``, which lives as long as its storage."""
    view = (ctypes.c_uint8 * block.size).from_address(block.address)
    view.block = block  # type: ignore[attr-defined]  # torch.frombuffer holds the view, and the view its block
    made = torch.empty(0, dtype=like.dtype)
    made.set_(torch.frombuffer(view, dtype=torch.uint8).untyped_storage(), 0, like.size(), like.stride())
    return made


class Factories(TorchFunctionMode):
    """Sends the factory calls of this thread's region to its saver; tensors under ``least`` bytes stay outside."""

    def __init__(self, saver: MemorySaver, least: int = 1) -> None:
        super().__init__()
        self._saver, self._least = saver, least

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See the class."""
        given = kwargs or {}
        func = _native(func)
        if self._saver.current is None or given.get("out") is not None or given.get("pin_memory"):
            return func(*args, **given)
        if func in SHAPED and _on_cpu(func, args, given):
            return self._shaped(func, args, given)
        if func in COMPUTED:
            return self._computed(func, args, given)
        return func(*args, **given)

    def _shaped(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        plan = func(*args, **{**given, "device": "meta", "requires_grad": False})
        block = self._block(plan)
        if block is None:
            return func(*args, **given)
        made = over(block, plan)
        with torch.no_grad():
            SHAPED[func](made, args, given)
        return made.requires_grad_() if given.get("requires_grad") else made

    def _computed(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        result = func(*args, **given)
        if result.device.type != "cpu" or result.grad_fn is not None or _shares(result, args):
            return result
        block = self._block(result)
        if block is None:
            return result
        made = over(block, result)
        with torch.no_grad():
            made.copy_(result)
        return made.requires_grad_(result.requires_grad)

    def _block(self, plan: torch.Tensor) -> Block | None:
        """Room for a dense tensor; None where it has no bytes of its own."""
        if plan.layout is not torch.strided or type(plan) is not torch.Tensor or not plan.numel():
            return None
        last = sum((size - 1) * stride for size, stride in zip(plan.size(), plan.stride(), strict=True))
        size = (last + 1) * plan.element_size()
        return self._saver.allocate(size) if size >= self._least else None


def _native(func: Any) -> Any:
    """PyTorch's own method. It tells a mode the attribute that ``torch.Tensor`` has now: where somebody has wrapped it,
    the wrapper, which has done its work already."""
    inner = getattr(func, "__wrapped__", None)
    return inner if isinstance(inner, MethodDescriptorType) else func


def _on_cpu(func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    device = given.get("device")
    if device is None and args and isinstance(args[0], torch.Tensor):
        device = args[0].device  # *_like and new_*
    return torch.device(torch.get_default_device() if device is None else device).type == "cpu"


def _shares(result: torch.Tensor, args: tuple[Any, ...]) -> bool:
    """Whether the result is a view of an argument, or the argument itself."""
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor) or first.layout is not torch.strided:
        return False
    return bool(result.untyped_storage().data_ptr() == first.untyped_storage().data_ptr())


def capture(saver: MemorySaver) -> AbstractContextManager[Any]:
    """For ``MemorySaver(capture=...)``: one mode is enough, however deep regions are nested."""
    return Factories(saver) if len(saver.regions.stack) == 1 else contextlib.nullcontext()
