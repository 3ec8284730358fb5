"""Draft weights over SGLang's own low-bit kernels for GPUs: Marlin (4 bits, NVIDIA) and FP8 (8 bits, NVIDIA and AMD).

Written from the kernels' sources (SGLang 0.5.15) and checked as far as a CPU can: layouts, not products. A refresh
copies into the same buffers, so that a captured graph stays valid. What no kernel takes says why, and its layer stays
as it is; AMD has no kernel that multiplies by 4-bit weights without unpacking them first, so W4 is refused there.
"""

from __future__ import annotations

from typing import Any

import torch

from specrollout import quantize
from specrollout.kernels import DraftWeight, Unsupported

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of 8 neighbouring outputs is in which 4 bits of a word, from the lowest, in AWQ's format."""
MARLIN_OUTPUTS, MARLIN_INPUTS = 64, 128


def make(kind: str, weight: torch.Tensor, group: int) -> DraftWeight:
    """As :func:`specrollout.kernels.make`."""
    if weight.dtype != torch.bfloat16:
        raise Unsupported(f"the GPU kernels take bfloat16, not {str(weight.dtype).removeprefix('torch.')}")
    if kind == "w8":
        return Fp8Weight(weight)
    if torch.version.hip:
        raise Unsupported("no kernel for 4-bit weights on AMD that is faster than bfloat16: use w8")
    return MarlinWeight(weight, group)


def awq_words(values: torch.Tensor) -> torch.Tensor:
    """4-bit values [K, N] as AWQ's words, int32 [K, N/8]."""
    rows, outputs = values.shape
    eight = values.reshape(rows, outputs // 8, 8).to(torch.int64)[..., list(AWQ_ORDER)]
    shifts = torch.arange(0, 32, 4, device=values.device)
    words = (eight << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


class MarlinWeight:
    """4 bits by Marlin: x in bfloat16, integer zero points.

    Raises:
        Unsupported: for shapes that Marlin's tiles do not divide, or a GPU before Ampere.
    """

    def __init__(self, weight: torch.Tensor, group: int) -> None:
        outputs, inputs = weight.shape
        found = quantize.group_for(inputs, group)
        if outputs % MARLIN_OUTPUTS or inputs % MARLIN_INPUTS or found is None:
            raise Unsupported(f"Marlin needs multiples of {MARLIN_OUTPUTS} outputs and {MARLIN_INPUTS} inputs")
        if torch.cuda.get_device_capability(weight.device) < (8, 0):
            raise Unsupported("Marlin needs compute capability 8.0")
        from sglang.srt.layers.quantization import marlin_utils

        self._marlin: Any = marlin_utils
        self._outputs, self._inputs, self._group = outputs, inputs, found
        self.method = f"w4 Marlin g{found}"
        device = weight.device
        self._codes = torch.empty(inputs // 16, outputs * 2, dtype=torch.int32, device=device)
        self._scales = torch.empty(inputs // found, outputs, dtype=weight.dtype, device=device)
        self._zeros = torch.empty(inputs // found, outputs // 8, dtype=torch.int32, device=device)
        self._no_order = torch.empty(0, dtype=torch.int32, device=device)
        self._workspace = marlin_utils.marlin_make_workspace(device)
        self._type = marlin_utils.scalar_types.uint4
        self._divide: torch.Tensor | None = None

    def load(self, weight: torch.Tensor, input_scale: torch.Tensor | None = None) -> None:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        from sglang.jit_kernel.awq_marlin_repack import awq_marlin_repack

        made = quantize.quantize(weight, 4, self._group, input_scale)
        inputs, outputs = self._inputs, self._outputs
        self._codes.copy_(awq_marlin_repack(awq_words(made.codes.T), inputs, outputs, 4))
        scales = self._marlin.marlin_permute_scales(made.scales.T.contiguous(), inputs, outputs, self._group)
        self._scales.copy_(scales)
        groups = inputs // self._group
        self._zeros.copy_(self._marlin.marlin_zero_points(made.zeros.T.int().contiguous(), groups, outputs, 4))
        self._divide = _in_place(self._divide, input_scale, weight.dtype)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        result: torch.Tensor = self._marlin.apply_awq_marlin_linear(
            input=x if self._divide is None else x * self._divide,
            weight=self._codes,
            weight_scale=self._scales,
            weight_zp=self._zeros,
            g_idx=self._no_order,
            g_idx_sort_indices=self._no_order,
            workspace=self._workspace,
            quant_type=self._type,
            output_size_per_partition=self._outputs,
            input_size_per_partition=self._inputs,
            bias=bias,
        )
        return result

    def buffers(self) -> list[torch.Tensor]:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        return [self._codes, self._scales, self._zeros]

    def dequantized(self) -> torch.Tensor:
        """By multiplying the identity: what the kernel makes of its buffers."""
        eye = torch.eye(self._inputs, dtype=self._scales.dtype, device=self._scales.device)
        return self.multiply(eye).float().T


class Fp8Weight:
    """8 bits by FP8 (e4m3), a scale for each output; the input is quantized with a scale for each token.

    The same kernels as SGLang's own FP8: CUTLASS on NVIDIA, aiter or ``torch._scaled_mm`` on AMD (e4m3fnuz on MI300).

    Raises:
        Unsupported: for shapes not of 16, or a GPU without FP8.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        outputs, inputs = weight.shape
        if outputs % 16 or inputs % 16:
            raise Unsupported(f"FP8 needs multiples of 16, not {outputs} outputs and {inputs} inputs")
        from sglang.srt.layers.quantization import fp8_kernel, fp8_utils

        self._utils: Any = fp8_utils
        self._aiter = bool(fp8_utils._use_aiter)
        self._cutlass = bool(fp8_utils.cutlass_fp8_supported())
        if not (self._cutlass or self._aiter or fp8_utils.USE_ROWWISE_TORCH_SCALED_MM):
            raise Unsupported("no FP8 kernel with a scale for each output on this GPU")
        self._largest = float(fp8_kernel.fp8_max)
        self._codes = torch.empty(outputs, inputs, dtype=fp8_kernel.fp8_dtype, device=weight.device)
        self._scales = torch.empty(outputs, 1, dtype=torch.float32, device=weight.device)
        self._divide: torch.Tensor | None = None
        self._eye = (inputs, weight.dtype)
        self.method = f"w8 FP8 {str(fp8_kernel.fp8_dtype).removeprefix('torch.float8_')} per output"

    def load(self, weight: torch.Tensor, input_scale: torch.Tensor | None = None) -> None:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        values = weight.float() if input_scale is None else weight.float() * input_scale
        largest = values.abs().amax(1, keepdim=True)
        if not bool(torch.isfinite(largest).all()):
            raise ValueError(quantize.NOT_FINITE)
        self._scales.copy_(torch.where(largest > 0, largest / self._largest, torch.ones_like(largest)))
        codes = (values / self._scales).clamp(-self._largest, self._largest).to(self._codes.dtype)
        if self._aiter:
            from aiter.ops.shuffle import shuffle_weight

            # Always from the plain weight: shuffled twice it would be another matrix.
            codes = shuffle_weight(codes, (16, 16))
        self._codes.copy_(codes)
        self._divide = _in_place(self._divide, input_scale, weight.dtype)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        x = (x if self._divide is None else x * self._divide).contiguous()
        result: torch.Tensor
        if self._aiter:
            result = self._utils.apply_fp8_ptpc_linear(
                x, self._codes, self._scales, bias=bias, use_per_token_if_dynamic=True, compressed_tensor_quant=True
            )
            return result
        result = self._utils.apply_fp8_linear(
            x,
            self._codes.T,
            self._scales,
            bias=bias,
            cutlass_fp8_supported=self._cutlass,
            use_per_token_if_dynamic=True,
        )
        return result

    def buffers(self) -> list[torch.Tensor]:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        return [self._codes, self._scales]

    def dequantized(self) -> torch.Tensor:
        """By multiplying the identity: what the kernel makes of its buffers."""
        inputs, dtype = self._eye
        return self.multiply(torch.eye(inputs, dtype=dtype, device=self._codes.device)).float().T


def _in_place(buffer: torch.Tensor | None, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """1/scale in the same memory as before: a captured graph reads it."""
    if scale is None:
        return None
    made = scale.reciprocal().to(dtype)
    return made if buffer is None else buffer.copy_(made)
