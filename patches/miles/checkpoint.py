"""Loads a Hugging Face folder (Llama or Qwen3, dense) into Megatron's GPT model, without megatron.bridge.

Megatron keeps, per layer: ``linear_qkv`` with the rows of q, k and v interleaved by query group, ``linear_fc1`` as
gate over up, and the two norms as ``layer_norm_weight`` of those linears. Tensor and pipeline parallel sizes must be
1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from april.errors import UsageError
from april.patches.patcher import Patcher

OUTER = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
}
INNER = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Replace ``_load_checkpoint_hf(ddp_model, optimizer, args, load_path) -> (iteration, flops)``."""
    patcher.replace(module, "_load_checkpoint_hf", load)


def load(ddp_model: Iterable[torch.nn.Module], optimizer: Any, args: Any, load_path: str) -> tuple[int, int]:
    """Fill the model from ``load_path``; the optimizer's fp32 copy follows.

    Raises:
        UsageError: when the folder lacks a tensor that the model needs, or a shape differs.
    """
    if args.tensor_model_parallel_size * args.pipeline_model_parallel_size != 1:
        raise UsageError("loading a Hugging Face folder on a CPU needs --tensor- and --pipeline-model-parallel-size 1")
    read = _reader(Path(load_path))
    with torch.no_grad():
        for part in ddp_model:
            for name, parameter in part.named_parameters():
                weight = _weight(name.rsplit("module.", 1)[-1], args, read)
                if weight.shape[1:] != parameter.shape[1:] or weight.shape[0] > parameter.shape[0]:
                    raise UsageError(f"{load_path}: {name} is {tuple(weight.shape)}, the flags say {parameter.shape}")
                parameter[: weight.shape[0]].copy_(weight)
    if optimizer is not None:
        optimizer.reload_model_params()
    return 0, 0


def _reader(folder: Path) -> Callable[[str], torch.Tensor]:
    from safetensors import safe_open

    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as handle:
            tensors.update({name: handle.get_tensor(name) for name in handle.keys()})  # noqa: SIM118

    def read(name: str) -> torch.Tensor:
        if name not in tensors:
            raise UsageError(f"{folder}: no tensor {name}; a dense Llama or Qwen3 checkpoint in safetensors is needed")
        return tensors[name]

    return read


def _weight(name: str, args: Any, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """Megatron's parameter ``name`` put together from the Hugging Face tensors."""
    if name in OUTER:
        return read(OUTER[name])
    _, _, layer, inner = name.split(".", 3)
    prefix = f"model.layers.{layer}."
    if inner == "self_attention.linear_qkv.weight":
        groups = args.num_query_groups or args.num_attention_heads
        head = args.kv_channels or args.hidden_size // args.num_attention_heads
        parts = [read(f"{prefix}self_attn.{p}_proj.weight").view(groups, -1, head, args.hidden_size) for p in "qkv"]
        return torch.cat(parts, 1).reshape(-1, args.hidden_size)
    if inner == "mlp.linear_fc1.weight":
        return torch.cat([read(f"{prefix}mlp.{part}_proj.weight") for part in ("gate", "up")])
    return read(prefix + INNER[inner])
