"""A run that goes on with its optimizer: Adam's state exists before the first step.

Megatron asks its distributed optimizer for a state dict before it loads one. Without Transformer Engine or Apex it
reads the step from PyTorch's Adam there, which has no state until it has stepped once. What Adam would make at its
first step, zero moments and step 0, is made here; loading then fills it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from april.patches.patcher import Patcher

ADAM = (torch.optim.Adam, torch.optim.AdamW)


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Wrap ``DistributedOptimizer.state_dict``."""
    patcher.wrap(module.DistributedOptimizer, "state_dict", state_dict)


def state_dict(original: Callable[[Any], Any], optimizer: Any) -> Any:
    """As Megatron's, also before the first step."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, ADAM) and not inner.state:
        begin(inner)
    return original(optimizer)


@torch.no_grad()
def begin(adam: torch.optim.Optimizer) -> None:
    """The state that ``adam`` gives each parameter at its first step: moments of zero, step 0."""
    for group in adam.param_groups:
        for parameter in group["params"]:
            state = adam.state[parameter]
            state["step"] = torch.tensor(0.0, dtype=torch.float32)
            for name in ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group.get("amsgrad") else [])):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
