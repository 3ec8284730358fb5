"""Numerics of the drafter's weights: round-to-nearest at 4 or 8 bits by group, in plain torch.

A weight is [N, K] (outputs, inputs); each group of G neighbouring inputs of an output has a scale and an integer zero
point: ``w = (code - zero) * scale``, codes 0..15 or 0..255. A range always contains 0, so 0 is exact. Scales are
rounded to bfloat16 before the codes are taken, so that kernels can store them so without another error.

Activation-aware scaling (AWQ, arXiv:2306.00978, section 3.2): inputs that are large on average get finer steps. The
weight is quantized as ``w * s``, the input is divided by ``s``, and ``s = mean|x|^a`` with the exponent ``a`` that
gives the least error of the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

GROUPS = (128, 64, 32)
"""Group sizes that the kernels take."""
BITS = {"w4": 4, "w8": 8}
NOT_FINITE = "the weight has a NaN or an infinity"
EXPONENTS = tuple(step / 10 for step in range(11))


@dataclass(frozen=True, slots=True)
class Quantized:
    """Codes uint8 [N, K]; scales bfloat16 [N, K/G] and zero points uint8 [N, K/G]; input scale float32 [K] or None."""

    bits: int
    group: int
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    input_scale: torch.Tensor | None = None


def group_for(inputs: int, wanted: int = GROUPS[0]) -> int | None:
    """The largest group size up to ``wanted`` that divides the inputs; None where none does."""
    return next((group for group in GROUPS if group <= wanted and inputs % group == 0), None)


def quantize(weight: torch.Tensor, bits: int, group: int, input_scale: torch.Tensor | None = None) -> Quantized:
    """Round to nearest. ``input_scale`` is what the input will be divided by.

    Raises:
        ValueError: where the weight has a NaN or an infinity, or its inputs are not a multiple of the group.
    """
    outputs, inputs = weight.shape
    if inputs % group:
        raise ValueError(f"{inputs} inputs are not a multiple of the group of {group}")
    values = weight.float() if input_scale is None else weight.float() * input_scale
    grouped = values.reshape(outputs, inputs // group, group)
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    if not bool(torch.isfinite(high - low).all()):
        raise ValueError(NOT_FINITE)
    top = 2**bits - 1
    scales = ((high - low) / top).bfloat16()
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    steps = scales.float().unsqueeze(-1)
    zeros = (-low.unsqueeze(-1) / steps).round().clamp(0, top)
    codes = ((grouped / steps).round() + zeros).clamp(0, top)
    return Quantized(bits, group, codes.reshape(outputs, inputs).byte(), scales, zeros.squeeze(-1).byte(), input_scale)


def dequantize(quantized: Quantized) -> torch.Tensor:
    """The weight that the codes stand for, float32 [N, K], with the input scale taken back out."""
    outputs, inputs = quantized.codes.shape
    grouped = quantized.codes.reshape(outputs, -1, quantized.group).float()
    weight = (grouped - quantized.zeros.float().unsqueeze(-1)) * quantized.scales.float().unsqueeze(-1)
    weight = weight.reshape(outputs, inputs)
    return weight if quantized.input_scale is None else weight / quantized.input_scale


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric int8 by output: codes int8 [N, K], scales float32 [N]. Raises ValueError as :func:`quantize` does."""
    largest = weight.float().abs().amax(1)
    if not bool(torch.isfinite(largest).all()):
        raise ValueError(NOT_FINITE)
    scales = torch.where(largest > 0, largest / 127, torch.ones_like(largest))
    return (weight.float() / scales.unsqueeze(1)).round().to(torch.int8), scales


def relative_error(weight: torch.Tensor, approximate: torch.Tensor) -> float:
    """Frobenius norm of the difference over that of the weight; 0 for a weight of zeros that is met."""
    norm = float(torch.linalg.vector_norm(weight.float()))
    difference = float(torch.linalg.vector_norm(weight.float() - approximate.float()))
    return difference / norm if norm else difference


def expected_error(weight: torch.Tensor, bits: int, group: int) -> float:
    """The relative error that rounding will make, without rounding: that of uniform noise of each group's step."""
    fitting = group_for(weight.shape[1], group)
    if fitting is None:
        return 0.0
    grouped = weight.reshape(weight.shape[0], -1, fitting)
    steps = (grouped.amax(-1).clamp(min=0).float() - grouped.amin(-1).clamp(max=0).float()) / (2**bits - 1)
    norm = float(torch.linalg.vector_norm(weight.float()))
    return float(torch.linalg.vector_norm(steps)) * (fitting / 12) ** 0.5 / norm if norm else 0.0


class Activations:
    """What a layer's inputs look like: mean magnitude by channel, and some rows to measure errors on."""

    def __init__(self, inputs: int, rows: int = 64) -> None:
        self.count = 0
        self._sum = torch.zeros(inputs)
        self._rows: list[torch.Tensor] = []
        self._limit = rows
        self._stride = 1

    def add(self, x: torch.Tensor) -> None:
        """Take inputs [..., K]. The kept rows are evenly spread over all that came."""
        flat = x.detach().reshape(-1, x.shape[-1]).float().cpu()
        self._sum += flat.abs().sum(0)
        first = -self.count % self._stride
        self._rows += [row.clone() for row in flat[first :: self._stride]]
        self.count += len(flat)
        while len(self._rows) > self._limit:
            self._rows = self._rows[::2]
            self._stride *= 2

    @property
    def mean(self) -> torch.Tensor:
        """Mean of |x| by channel, float32 [K]."""
        return self._sum / max(1, self.count)

    @property
    def rows(self) -> torch.Tensor:
        """The kept rows, float32 [at most 64, K]; there must be one."""
        return torch.stack(self._rows)


@dataclass(frozen=True, slots=True)
class Scaling:
    """An input scale float32 [K], its exponent, and the output's relative error without and with it."""

    scale: torch.Tensor
    exponent: float
    error_before: float
    error_after: float


def search_scaling(weight: torch.Tensor, activations: Activations, bits: int, group: int) -> Scaling | None:
    """The exponent with the least output error on the kept rows; None where no exponent beats none at all."""
    if not activations.count:
        return None
    rows = activations.rows.to(weight.device)
    wanted = rows @ weight.float().T
    mean = activations.mean.to(weight.device).clamp(min=1e-6)
    errors = {}
    for exponent in EXPONENTS:
        approximate = dequantize(quantize(weight, bits, group, _scale(mean, exponent)))
        errors[exponent] = relative_error(wanted, rows @ approximate.T)
    best = min(errors, key=errors.__getitem__)
    return None if best == 0.0 else Scaling(_scale(mean, best), best, errors[0.0], errors[best])


def _scale(mean: torch.Tensor, exponent: float) -> torch.Tensor:
    """mean^a, centred so that the largest and the smallest multiply to 1 (the quantized range stays where it was)."""
    scale = mean.pow(exponent)
    return scale / (scale.max() * scale.min()).sqrt()


def mixed_plan(errors: Mapping[str, float], sizes: Mapping[str, int], budget: float = 0.2) -> dict[str, str]:
    """Kinds by layer: W8 for the layers whose W4 error is highest, until ``budget`` of all weights have it."""
    left = budget * sum(sizes.values())
    plan = dict.fromkeys(errors, "w4")
    for name in _by_error(errors):
        if sizes[name] <= left:
            left -= sizes[name]
            plan[name] = "w8"
    return plan


def _by_error(errors: Mapping[str, float]) -> Iterable[str]:
    return sorted(errors, key=lambda name: (-errors[name], name))
