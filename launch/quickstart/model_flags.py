"""From a Hugging Face config.json to Megatron's model flags, for the dense Qwen2, Qwen3 and Llama shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from april.errors import UsageError

WIDEST_PADDING = 128
"""Megatron pads the vocabulary to a multiple of this unless told otherwise."""

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Megatron's scaling of Llama 3's rotary embeddings has built in."""


def from_folder(folder: Path) -> list[str]:
    """Flags for the model in a Hugging Face folder."""
    return from_config(json.loads((folder / "config.json").read_text()))


def from_config(config: Mapping[str, Any]) -> list[str]:
    """Flags for a config of model_type qwen2, qwen3 or llama.

    Raises UsageError for another architecture, or a variant whose weights Megatron would hold differently.
    """
    kind = config["model_type"]
    if kind not in ("qwen2", "qwen3", "llama"):
        raise UsageError(f"model_type {kind!r} is not supported: use a dense qwen2, qwen3 or llama")
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise UsageError(f"a {kind} with biases in its linear layers is not supported")
    heads = config["num_attention_heads"]
    theta, scaling = _rope(config)
    flags = {
        "--num-layers": config["num_hidden_layers"],
        "--hidden-size": config["hidden_size"],
        "--ffn-hidden-size": config["intermediate_size"],
        "--num-attention-heads": heads,
        "--num-query-groups": config["num_key_value_heads"],
        "--kv-channels": config.get("head_dim") or config["hidden_size"] // heads,
        "--rotary-base": int(theta),
        "--normalization": "RMSNorm",
        "--norm-epsilon": repr(config["rms_norm_eps"]),  # the hosts compare it with the config exactly
        "--vocab-size": config["vocab_size"],
        "--make-vocab-size-divisible-by": math.gcd(config["vocab_size"], WIDEST_PADDING),
    }
    switches = ["--swiglu", "--group-query-attention", "--use-rotary-position-embeddings", "--disable-bias-linear"]
    if kind == "qwen3":
        switches.append("--qk-layernorm")
    if kind == "qwen2":
        switches.append("--add-qkv-bias")
    if not config.get("tie_word_embeddings", False):
        switches.append("--untie-embeddings-and-output-weights")
    return [*switches, *scaling, *(text for flag, value in flags.items() for text in (flag, str(value)))]


def _rope(config: Mapping[str, Any]) -> tuple[float, list[str]]:
    """Base of the rotary embeddings and the flags of their scaling.

    transformers 5 has both in ``rope_parameters``, earlier versions beside the other fields.
    """
    rope = config.get("rope_parameters") or {
        "rope_theta": config.get("rope_theta"),
        **(config.get("rope_scaling") or {}),
    }
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return rope["rope_theta"], []
    if kind != "llama3" or any(rope.get(name) != value for name, value in LLAMA3.items()):
        raise UsageError(f"rope_type {kind!r} is not supported: use plain rotary embeddings, or those of Llama 3.1")
    return rope["rope_theta"], ["--use-rope-scaling", "--rope-scaling-factor", str(rope["factor"])]
