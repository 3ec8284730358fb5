"""Quantized weights that multiply: one interface over the kernels of a CPU and of GPUs.

A :class:`DraftWeight` is made once for a layer and refilled in place at each refresh, so that its addresses stay valid.
:func:`make` says which one fits a weight, or why none does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Multiply = Callable[[torch.Tensor, "torch.Tensor | None"], torch.Tensor]
DTYPES = (torch.bfloat16, torch.float32, torch.float16)


class Unsupported(Exception):
    """No kernel takes this weight; the message is the reason."""


class DraftWeight(Protocol):
    """A layer's weight as the drafter has it."""

    method: str
    """What really multiplies, for people: kernel, bits, group."""

    @property
    def multiply(self) -> Multiply:
        """x [..., K] and the bias [N] or None to [..., N] in the type of x."""

    def load(self, weight: torch.Tensor, input_scale: torch.Tensor | None = None) -> None:
        """Quantize the weight [N, K] into the buffers. Raises ValueError where it is not finite."""

    def buffers(self) -> list[torch.Tensor]:
        """The memory that it holds."""

    def dequantized(self) -> torch.Tensor:
        """The weight that the buffers stand for, float32 [N, K]."""


def make(kind: str, weight: torch.Tensor, group: int) -> DraftWeight:
    """An empty weight of the kind (``w4`` or ``w8``) for one like this.

    Raises:
        Unsupported: with the reason why the layer has to stay as it is.
    """
    if weight.ndim != 2:
        raise Unsupported(f"the weight has {weight.ndim} dimensions, not 2")
    if weight.dtype not in DTYPES:
        raise Unsupported(f"no kernel takes {str(weight.dtype).removeprefix('torch.')}")
    if weight.device.type == "cpu":
        from specrollout.kernels import cpu

        return cpu.make(kind, weight, group)
    if weight.device.type == "cuda":
        from specrollout.kernels import gpu

        return gpu.make(kind, weight, group)
    raise Unsupported(f"no kernel for a {weight.device.type}")


def nbytes(weight: DraftWeight) -> int:
    """Bytes that the weight holds."""
    return sum(buffer.numel() * buffer.element_size() for buffer in weight.buffers())
