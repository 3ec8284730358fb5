"""Draft weights over PyTorch's own low-bit kernels for CPUs: what remains where the native one cannot be built."""

from __future__ import annotations

import torch

from specrollout.kernels import Unsupported
from specrollout.quantize import group_for, quantize, quantize_rows


class AtenW4:
    """``_weight_int4pack_mm_for_cpu``: w = (code - 8) * scale + zero, scales and zeros in the type of x."""

    def __init__(self, weight: torch.Tensor, group: int) -> None:
        found = group_for(weight.shape[1], group)
        if found is None:
            raise Unsupported(f"{weight.shape[1]} inputs are not a multiple of 32")
        if weight.shape[0] % 16:
            raise Unsupported(f"{weight.shape[0]} outputs are not a multiple of 16")
        self._group = found
        self._outputs, self._inputs = weight.shape
        self._packed = torch.empty(self._outputs, self._inputs // 2, dtype=torch.uint8)
        self._affine = torch.empty(self._inputs // found, self._outputs, 2, dtype=weight.dtype)
        self._divide: torch.Tensor | None = None
        self.method = f"w4 aten g{found}"

    def load(self, weight: torch.Tensor, input_scale: torch.Tensor | None = None) -> None:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        made = quantize(weight, 4, self._group, input_scale)
        scales = made.scales.float()
        self._affine.copy_(torch.stack([scales, (8 - made.zeros.float()) * scales], -1).transpose(0, 1))
        self._packed.copy_(torch.ops.aten._convert_weight_to_int4pack_for_cpu(made.codes.int(), 1))
        self._divide = None if input_scale is None else input_scale.reciprocal().to(weight.dtype)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        flat = x.reshape(-1, self._inputs)
        if self._divide is not None:
            flat = flat * self._divide
        y: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(flat, self._packed, self._group, self._affine)
        y = y.view(*x.shape[:-1], self._outputs)
        return y if bias is None else y + bias

    def buffers(self) -> list[torch.Tensor]:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        return [self._packed, self._affine]

    def dequantized(self) -> torch.Tensor:
        """By multiplying the identity."""
        return self.multiply(torch.eye(self._inputs, dtype=self._affine.dtype)).float().T


class AtenW8:
    """``_weight_int8pack_mm``: symmetric, a scale for each output."""

    def __init__(self, weight: torch.Tensor) -> None:
        if weight.dtype != torch.bfloat16:
            raise Unsupported("aten's int8 kernel takes bfloat16 only")
        self._outputs, self._inputs = weight.shape
        self._codes = torch.empty(weight.shape, dtype=torch.int8)
        self._scales = torch.empty(self._outputs, dtype=weight.dtype)
        self._divide: torch.Tensor | None = None
        self.method = "w8 aten per output"

    def load(self, weight: torch.Tensor, input_scale: torch.Tensor | None = None) -> None:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        codes, scales = quantize_rows(weight if input_scale is None else weight.float() * input_scale)
        self._codes.copy_(codes)
        self._scales.copy_(scales)
        self._divide = None if input_scale is None else input_scale.reciprocal().to(self._scales.dtype)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        flat = x.reshape(-1, self._inputs)
        if self._divide is not None:
            flat = flat * self._divide
        y: torch.Tensor = torch.ops.aten._weight_int8pack_mm(flat, self._codes, self._scales)
        y = y.view(*x.shape[:-1], self._outputs)
        return y if bias is None else y + bias

    def buffers(self) -> list[torch.Tensor]:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        return [self._codes, self._scales]

    def dequantized(self) -> torch.Tensor:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        weight = self._codes.float() * self._scales.float().unsqueeze(1)
        return weight if self._divide is None else weight * self._divide.float()
