"""Which layers of a model the drafter can have its own weights for, and why not the others. Knows SGLang by shape only.

A layer of SGLang holds a ``quant_method`` whose ``apply(layer, x, bias)`` multiplies. Layers of LoRA, experts and what
is quantized already stay as they are. The head is special: where it is tied it is the embedding too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

PLAIN = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")
HEAD = "lm_head"


@dataclass(slots=True)
class FoundLayer:
    """A layer that multiplies; ``reason`` says why it cannot be drafted with, if it cannot."""

    name: str
    module: torch.nn.Module
    reason: str | None = None

    @property
    def weight(self) -> torch.Tensor:
        """[N, K], as it is now (an update may put another tensor there)."""
        return self.module.get_parameter("weight").data


def find(model: torch.nn.Module, quantize_head: bool = True) -> list[FoundLayer]:
    """The layers in the model's order, the head last."""
    found = [FoundLayer(name, module, _reason(module, lora)) for name, module, lora in _linears(model)]
    head = getattr(model, HEAD, None)
    if isinstance(head, torch.nn.Module) and getattr(head, "quant_method", None) is not None:
        reason = None if quantize_head else "the head stays as it is"
        found.append(FoundLayer(HEAD, head, _reason(head, _is_lora(head)) or reason))
    return found


def _linears(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """Name, module and whether it is inside a LoRA wrapper; neither embeddings nor the head nor attention."""
    adapted = {id(part) for module in model.modules() if _is_lora(module) for part in module.modules()}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        is_matrix = any(True for _ in module.parameters(recurse=False)) and callable(getattr(method, "apply", None))
        if not is_matrix or module is getattr(model, HEAD, None):
            continue
        if hasattr(method, "embedding") or type(method).__name__.endswith("KVCacheMethod"):
            continue
        yield name, module, id(module) in adapted


def _is_lora(module: torch.nn.Module) -> bool:
    return hasattr(module, "set_lora") and hasattr(module, "apply_lora")


def _reason(module: Any, lora: bool) -> str | None:
    if lora:
        return "LoRA layer"
    method = type(module.quant_method).__name__
    if method not in PLAIN:
        return f"{method}: only plain weights can be quantized"
    if getattr(module, "use_intel_amx_backend", False):
        return "the weight is packed for AMX"
    return None
