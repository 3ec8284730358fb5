"""Which kernel multiplies on a CPU: the native one, and PyTorch's own where that cannot run or be compiled."""

from __future__ import annotations

import functools
import logging

import torch

from april.errors import AprilError
from specrollout.kernels import DraftWeight, build
from specrollout.kernels.aten import AtenW4, AtenW8
from specrollout.kernels.native import NativeWeight, library

log = logging.getLogger(__name__)


class ThroughFloat32:
    """A weight for inputs in float16, which no kernel of a CPU takes: they are converted before and after."""

    def __init__(self, kind: str, weight: torch.Tensor, group: int) -> None:
        self._inner = make(kind, weight.float(), group)
        self.method = f"{self._inner.method}, through float32"
        self.buffers, self.dequantized = self._inner.buffers, self._inner.dequantized
        multiply = self._inner.multiply

        def through(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return multiply(x.float(), None if bias is None else bias.float()).to(x.dtype)

        self.multiply = through

    def load(self, weight: torch.Tensor, input_scale: torch.Tensor | None = None) -> None:
        """As :class:`specrollout.kernels.DraftWeight` says."""
        self._inner.load(weight.float(), input_scale)


def make(kind: str, weight: torch.Tensor, group: int) -> DraftWeight:
    """As :func:`specrollout.kernels.make`."""
    if weight.dtype is torch.float16:
        return ThroughFloat32(kind, weight, group)
    if no_native() is None:
        return NativeWeight(kind, weight, group)
    return AtenW4(weight, group) if kind == "w4" else AtenW8(weight)


@functools.cache
def no_native() -> str | None:
    """Why the native kernels cannot be used here; None where they can."""
    reason = None
    if missing := build.missing():
        reason = f"this CPU has no {', '.join(missing)}"
    else:
        try:
            library()
        except AprilError as error:
            reason = str(error)
    if reason:
        log.warning("specrollout: the drafter multiplies by PyTorch's kernels, which are slower: %s", reason)
    return reason
