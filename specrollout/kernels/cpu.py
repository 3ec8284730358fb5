"""Which kernel multiplies on a CPU."""

from __future__ import annotations

import torch

from specrollout.kernels import DraftWeight
from specrollout.kernels.aten import AtenW4, AtenW8


def make(kind: str, weight: torch.Tensor, group: int) -> DraftWeight:
    """As :func:`specrollout.kernels.make`."""
    return AtenW4(weight, group) if kind == "w4" else AtenW8(weight)
