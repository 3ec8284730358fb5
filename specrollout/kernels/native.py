"""The native library, and draft weights over its products (native/lowbit.cpp).

Weights have 4 or 8 bits; the input is quantized to 8 bits by group. The products are called through ctypes: a call
costs a few microseconds less than one of PyTorch's operators, and the library needs no PyTorch to be compiled.
"""

from __future__ import annotations

import ctypes
import functools
import re
from ctypes import c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch

from specrollout import quantize
from specrollout.kernels import Unsupported, build

LANES = 16
TYPES = {torch.float32: 0, torch.bfloat16: 1}
OPENMP = re.compile(r"/\S*lib(?:gomp|iomp5|omp)[^/\s]*\.so\S*")


class _Weight(ctypes.Structure):
    """As ``Weight`` in lowbit.cpp."""

    _fields_ = (
        *((name, c_int64) for name in ("outputs", "inputs", "group", "bits")),
        *((name, c_void_p) for name in ("codes", "scales", "zeros", "multiply_weight", "multiply_input")),
    )


@functools.cache
def library() -> Any:
    """The library, with PyTorch's threads; raises AprilError where it cannot be compiled."""
    loaded = ctypes.CDLL(str(build.library()))
    loaded.april_quantize.argtypes = (c_void_p, c_void_p, c_int32, c_int32)
    loaded.april_multiply.argtypes = (c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int32, c_int32)
    loaded.april_multiply.restype = None
    loaded.april_threads_from.restype = None
    loaded.april_rms_norm.argtypes = (*5 * (c_void_p,), c_int64, c_int64, c_float, c_int32, c_int32)
    loaded.april_silu_and_mul.argtypes = (c_void_p, c_void_p, c_int64, c_int64, c_int32)
    loaded.april_rotate.argtypes = (*4 * (c_void_p,), *5 * (c_int64,), *3 * (c_int32,))
    for name in ("rms_norm", "silu_and_mul", "rotate"):
        getattr(loaded, f"april_{name}").restype = None
    if runtime := _openmp():
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        loaded.april_threads_from(*(ctypes.cast(getattr(runtime, name), c_void_p) for name in names))
    return loaded


def _openmp() -> Any | None:
    """The OpenMP runtime that PyTorch has loaded: its threads wait for work already, others would be in their way."""
    loaded = set(OPENMP.findall(Path("/proc/self/maps").read_text()))
    own = sorted(loaded, key=lambda path: (not path.startswith(str(Path(torch.__file__).parent)), path))
    for path in own:
        runtime = ctypes.CDLL(path)
        if hasattr(runtime, "GOMP_parallel"):
            return runtime
    return None


class NativeWeight:
    """A weight of 4 or 8 bits.

    Raises:
        Unsupported: where no group fits.
    """

    def __init__(self, kind: str, weight: torch.Tensor, group: int) -> None:
        outputs, inputs = weight.shape
        found = quantize.group_for(inputs, group)
        if found is None:
            raise Unsupported(f"{inputs} inputs are not a multiple of {quantize.GROUPS[-1]}")
        bits = quantize.BITS[kind]
        blocks = -(-outputs // LANES)
        self.method = f"{kind} native g{found}, inputs of 8 bits"
        self._type = weight.dtype
        self._shape = (outputs, inputs, found, bits)
        # Zeros, for the lanes of outputs that there are not.
        self._codes = torch.zeros(blocks, inputs * bits * LANES // 8, dtype=torch.uint8)
        self._scales = torch.zeros(blocks, inputs // found, LANES, dtype=torch.bfloat16)
        self._zeros = torch.zeros(blocks, inputs // found, LANES, dtype=torch.uint8)
        self._input_scale: tuple[torch.Tensor, torch.Tensor] | None = None
        pointers = (buffer.data_ptr() for buffer in self.buffers())
        self._struct = _Weight(*self._shape, *pointers, None, None)
        self.multiply = self._bound()

    def load(self, weight: torch.Tensor, input_scale: torch.Tensor | None = None) -> None:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        if weight.dtype != self._type or tuple(weight.shape) != self._shape[:2]:
            raise ValueError(f"it became {list(weight.shape)} of {weight.dtype}")
        if input_scale is None:
            self._input_scale = None
            self._struct.multiply_weight = self._struct.multiply_input = None
        else:
            both = (input_scale.float().contiguous(), input_scale.float().reciprocal())
            self._input_scale = both
            self._struct.multiply_weight, self._struct.multiply_input = (part.data_ptr() for part in both)
        source = weight.contiguous()
        threads = torch.get_num_threads()
        if library().april_quantize(ctypes.addressof(self._struct), source.data_ptr(), TYPES[self._type], threads):
            raise ValueError(quantize.NOT_FINITE)

    def buffers(self) -> list[torch.Tensor]:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        return [self._codes, self._scales, self._zeros]

    def quantized(self) -> quantize.Quantized:
        """The codes in order, as :func:`specrollout.quantize.quantize` gives them."""
        outputs, inputs, group, bits = self._shape
        if bits == 4:
            packed = self._codes.view(-1, inputs // 8, LANES, 1, 4)
            codes = torch.cat([packed & 15, packed >> 4], 3)
        else:
            codes = self._codes.view(-1, inputs // 4, LANES, 4)
        codes = codes.transpose(1, 2).reshape(-1, inputs)[:outputs]
        scales, zeros = (part.transpose(1, 2).reshape(-1, inputs // group)[:outputs] for part in self.buffers()[1:])
        return quantize.Quantized(bits, group, codes, scales, zeros, self._input_scale and self._input_scale[0])

    def dequantized(self) -> torch.Tensor:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        return quantize.dequantize(self.quantized())

    def _bound(self) -> Any:
        """The product as one flat function: it is called for each linear of each draft step."""
        call, address, threads = library().april_multiply, ctypes.addressof(self._struct), torch.get_num_threads
        outputs, inputs = self._shape[:2]
        wanted, code = self._type, TYPES[self._type]

        def multiply(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            if x.dtype is not wanted or x.shape[-1] != inputs or (bias is not None and bias.dtype is not wanted):
                raise ValueError(f"{list(x.shape)} of {x.dtype}: not [..., {inputs}] of {wanted}, or not such a bias")
            if not x.is_contiguous():
                x = x.contiguous()
            y = x.new_empty((*x.shape[:-1], outputs))
            pointer = None if bias is None else bias.data_ptr()
            call(address, x.data_ptr(), pointer, y.data_ptr(), x.numel() // inputs, code, threads())
            return y

        return multiply
