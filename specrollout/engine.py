"""What an engine is, to its worker: whether it can speculate, its model's constants, its device."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import torch

from april.errors import UsageError
from april.memory import drafter as memory
from specrollout import draft_layers
from specrollout.drafter import SelfDrafter
from specrollout.roofline.calibration import Fingerprint
from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.decisions import DecisionLog
from specrollout.settings import Settings

CHAIN_BACKENDS = ("TritonAttnBackend", "FlashAttentionBackend")
"""Backends whose code takes a plain causal chain in a verify step; none of them has been run by us."""


def settings_for(device: str, settings: Settings) -> Settings:
    """What an engine on this device can obey: GPU backends fix the width of a verify pass when they are made.

    There every draft has the longest length; of another the pass would read the wrong rows.
    """
    return settings if device == "cpu" else replace(settings, gamma=settings.longest)


def refusal(server_args: Any, runner: Any) -> str | None:
    """Why an engine with these arguments cannot speculate; None where it can."""
    reasons = {
        "pipeline parallelism (--pp-size)": server_args.pp_size > 1,
        "attention over data-parallel ranks (--enable-dp-attention)": server_args.enable_dp_attention,
        "LoRA adapters": bool(getattr(server_args, "enable_lora", False)),
        "two-batch overlap": bool(server_args.enable_two_batch_overlap),
        "disaggregated prefill": server_args.disaggregation_mode != "null",
        "a model with recurrent state (mamba)": getattr(runner, "mambaish_config", None) is not None,
        "multimodal positions (mrope)": bool(getattr(runner, "model_is_mrope", False)),
        "quantized target weights": bool(runner.model_config.quantization),
    }
    found = [name for name, present in reasons.items() if present]
    return f"not with {', '.join(found)}" if found else None


def backend_refusal(runner: Any, device: str) -> str | None:
    """Why the attention backend cannot draft and verify chains; None where it can."""
    if device == "cpu":
        from specrollout.attention import refusal as chain_refusal

        return chain_refusal(runner)
    name = type(runner.attn_backend).__name__
    return None if name in CHAIN_BACKENDS else f"the attention backend {name} is not known to verify chains"


def capture_plain_graphs(target_worker: Any) -> None:
    """Have the target capture its decode graphs as without speculation: they serve plain steps, and nothing else."""
    original = target_worker.init_cuda_graphs

    def init_cuda_graphs(self: Any, *args: Any, **kwargs: Any) -> Any:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        runner = self.model_runner
        kept, runner.spec_algorithm = runner.spec_algorithm, SpeculativeAlgorithm.NONE
        try:
            return original(*args, **kwargs)
        finally:
            runner.spec_algorithm = kept

    target_worker.init_cuda_graphs = MethodType(init_cuda_graphs, target_worker)


def region(runner: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Where the drafter's weights are allocated: paused and resumed with the target's."""
    return lambda: runner.memory_saver_adapter.region(memory.tag())


def constants(runner: Any, tp: int, settings: Settings, drafter: SelfDrafter | None) -> ModelConstants:
    """Bytes and operations of one rank's share, counted on the weights that are loaded."""
    config, model = runner.model_config, runner.model
    sizes = {id(p): p.numel() * p.element_size() for p in model.parameters()}
    total = float(sum(sizes.values()))
    head = getattr(model, "lm_head", None)
    head_weight = getattr(head, "weight", None)
    embedding = model.get_input_embeddings().weight if hasattr(model, "get_input_embeddings") else None
    tied = embedding is None or head_weight is None or head_weight.data_ptr() == embedding.data_ptr()
    read = total
    if embedding is not None and not tied:
        read -= float(embedding.numel() * embedding.element_size())
    width = max(1, next(iter(model.parameters())).element_size())
    layers, hidden = int(config.num_hidden_layers), int(config.hidden_size)
    heads = max(1, int(config.num_attention_heads) // tp)
    kv_heads = int(config.get_num_kv_heads(tp))
    drafter_bytes = total if drafter is None else total - _replaced(model, settings) + _drafter_bytes(drafter, settings)
    return ModelConstants(
        name=Path(str(config.model_path)).name,
        tp=tp,
        target_bytes=total,
        drafter_bytes=float(drafter_bytes),
        dense_flop=2.0 * read / width,
        attention_flop=4.0 * layers * heads * int(config.head_dim),
        kv_bytes=2.0 * layers * kv_heads * int(config.head_dim) * width,
        layers=layers,
        heads=heads,
        width=hidden,
        head_bytes=0.0 if head_weight is None else float(head_weight.numel() * head_weight.element_size()),
    )


def _replaced(model: torch.nn.Module, settings: Settings) -> float:
    """Bytes of the weights that the drafter has its own for."""
    layers = [layer.weight for layer in draft_layers.find(model, settings.quantize_head) if layer.reason is None]
    return float(sum(weight.numel() * weight.element_size() for weight in layers))


def _drafter_bytes(drafter: SelfDrafter, settings: Settings) -> float:
    """Of the 4-bit kind where there are both, which are as 1 to 2."""
    return drafter.stats.bytes / (3.0 if settings.drafter == "auto" else 1.0)


def fingerprint(known: ModelConstants, device: str) -> Fingerprint:
    """What a calibration must match."""
    name = torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else device
    return Fingerprint(name, known.name, known.tp, known.target_bytes, known.drafter_bytes)


def decision_log(path: str | None) -> DecisionLog | None:
    """The log of decisions, opened to append. Raises UsageError where it cannot be written."""
    if path is None:
        return None
    try:
        return DecisionLog(Path(path).open("a", encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"decision log {path}: {error.strerror or error}") from error


def pid() -> int:
    """Of this process: names an engine in logs."""
    return os.getpid()
