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


def make(kind: str, weight: torch.Tensor, group: int) -> DraftWeight:
    """As :func:`specrollout.kernels.make`."""
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
