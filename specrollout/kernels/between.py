"""What is between the products while drafting on a CPU: norms, rotary embeddings and gates as one native call each.

SGLang's modules make them of 5 to 20 operators where there is no AMX, which takes longer than a draft's products. The
replacements stand where a module keeps its ``_forward_method``, while drafting only. They round once, at the end, so
they are not bit for bit what the target has: a draft may differ. What they do not know they hand to the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from specrollout.kernels import cpu
from specrollout.kernels.native import TYPES, library

Forward = Callable[..., Any]
PLACE = "_forward_method"
AS_USUAL = ("forward_native", "forward_cpu")


def replacements(modules: Iterable[torch.nn.Module]) -> Iterator[tuple[torch.nn.Module, Forward]]:
    """Modules and what to put at their :data:`PLACE`; none where the native library cannot be used."""
    if cpu.no_native() is not None:
        return
    for module in modules:
        usual: Any = module.__dict__.get(PLACE)
        if getattr(usual, "__name__", "") in AS_USUAL and (make := _maker(module)):
            yield module, make(module, usual)


def _maker(module: Any) -> Callable[[Any, Forward], Forward] | None:
    name = type(module).__name__
    if name == "RMSNorm":
        weight = module.weight
        plain = not (module.fp32_residual or module.override_orig_dtype or module.cast_x_before_out_mul)
        usable = weight.dtype in TYPES and weight.device.type == "cpu" and weight.numel() == module.hidden_size
        return _rms_norm if plain and usable and module.variance_size_override is None else None
    if name == "SiluAndMul":
        return _silu_and_mul
    # Subclasses that only have another table are as good.
    if getattr(type(module), "forward_native", _maker).__qualname__ == "RotaryEmbedding.forward_native":
        table = module.cos_sin_cache
        usable = table.dtype in TYPES and table.device.type == "cpu" and table.shape[1] == module.rotary_dim
        return _rotary if usable and not hasattr(module, "sin_cos_cache") else None
    return None


def _rms_norm(module: Any, usual: Forward) -> Forward:
    call, weight = library().april_rms_norm, module.weight.data.contiguous()
    pointer, weight_type = weight.data_ptr(), TYPES[weight.dtype]
    size, epsilon = weight.numel(), float(module.variance_epsilon)

    def forward(x: torch.Tensor, residual: torch.Tensor | None = None, *more: Any, **named: Any) -> Any:
        kind = TYPES.get(x.dtype)
        if kind is None or x.shape[-1] != size or any(more) or named:
            return usual(x, residual, *more, **named)
        x = x.contiguous()
        out = torch.empty_like(x)
        rows = x.numel() // size
        if residual is None:
            call(x.data_ptr(), None, pointer, out.data_ptr(), None, rows, size, epsilon, kind, weight_type)
            return out
        if residual.dtype is not x.dtype or residual.shape != x.shape or not residual.is_contiguous():
            return usual(x, residual)
        added = torch.empty_like(x)
        places = x.data_ptr(), residual.data_ptr(), pointer, out.data_ptr(), added.data_ptr()
        call(*places, rows, size, epsilon, kind, weight_type)
        return out, added

    forward.weight = weight  # type: ignore[attr-defined]  # its memory is read as long as this is
    return forward


def _silu_and_mul(module: Any, usual: Forward) -> Forward:
    call = library().april_silu_and_mul

    def forward(x: torch.Tensor) -> Any:
        kind, size = TYPES.get(x.dtype), x.shape[-1] // 2
        if kind is None or x.shape[-1] % 2:
            return usual(x)
        x = x.contiguous()
        out = x.new_empty((*x.shape[:-1], size))
        call(x.data_ptr(), out.data_ptr(), out.numel() // max(1, size), size, kind)
        return out

    return forward


def _rotary(module: Any, usual: Forward) -> Forward:
    call, buffers = library().april_rotate, module._buffers
    size, turned, halves = module.head_size, module.rotary_dim, int(module.is_neox_style)

    def forward(positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *more: Any, **named: Any) -> Any:
        kind, table = TYPES.get(query.dtype), buffers["cos_sin_cache"]  # which may grow
        fits = kind is not None and key.dtype is query.dtype and query.dim() == 2 and key.dim() == 2
        given = any(part is not None for part in (*more, *named.values()))
        if given or not fits or query.stride(1) != 1 or key.stride(1) != 1 or positions.dtype != torch.int64:
            return usual(positions, query, key, *more, **named)
        positions, table_type, made = positions.contiguous(), TYPES[table.dtype], []
        for x in (query, key):
            tokens, width = x.shape
            out = x.new_empty((tokens, width))
            places = positions.data_ptr(), x.data_ptr(), out.data_ptr(), table.data_ptr()
            call(*places, tokens, width // size, size, turned, x.stride(0), halves, kind, table_type)
            made.append(out)
        return made[0], made[1]

    return forward
