"""Megatron's flags from Hugging Face configs."""

from __future__ import annotations

from typing import Any

import pytest

from april.errors import UsageError
from april.launch.quickstart import model_flags


@pytest.fixture
def llama(qwen3: dict[str, Any]) -> dict[str, Any]:
    """A Llama as earlier versions of transformers write it."""
    return {**qwen3, "model_type": "llama", "head_dim": None, "rope_parameters": None, "rope_theta": 100000}


def value(flags: list[str], flag: str) -> str:
    return flags[flags.index(flag) + 1]


def test_tiny_qwen3(qwen3: dict[str, Any]) -> None:
    flags = model_flags.from_config(qwen3)
    expected = {
        "--num-layers": "4",
        "--hidden-size": "192",
        "--ffn-hidden-size": "512",
        "--num-attention-heads": "6",
        "--num-query-groups": "2",
        "--kv-channels": "32",
        "--rotary-base": "10000",
        "--vocab-size": "32",
        "--make-vocab-size-divisible-by": "32",
    }
    assert {flag: value(flags, flag) for flag in expected} == expected
    assert "--qk-layernorm" in flags
    assert "--untie-embeddings-and-output-weights" not in flags


def test_llama_without_head_dim_and_with_old_rope_fields(llama: dict[str, Any]) -> None:
    flags = model_flags.from_config({**llama, "tie_word_embeddings": False})
    assert value(flags, "--kv-channels") == "32"
    assert value(flags, "--rotary-base") == "100000"
    assert "--qk-layernorm" not in flags
    assert "--untie-embeddings-and-output-weights" in flags


def test_epsilon_is_exactly_the_configs(llama: dict[str, Any]) -> None:
    flags = model_flags.from_config({**llama, "rms_norm_eps": 9.999999747378752e-06})
    assert float(value(flags, "--norm-epsilon")) == 9.999999747378752e-06


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "qwen3_moe"}, "qwen3_moe"),
        ({"attention_bias": True}, "biases"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "yarn"),
    ],
)
def test_what_is_not_supported_is_named(qwen3: dict[str, Any], change: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        model_flags.from_config({**qwen3, **change})
