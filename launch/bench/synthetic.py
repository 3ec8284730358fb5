"""A made-up model of about 1e9 linear parameters (Llama's architecture): for times, not for what it says.

Its weights are random, so acceptance is what we make it. Two numbers shape it: layers add little to the residual stream
(as in trained models, where most of a token's state comes from before), and the final norm sets how peaked the next
token's distribution is.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from april.errors import AprilError
from april.launch.quickstart.cache import ensure

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, VOCABULARY = 2048, 5632, 22, 32, 4, 32000
"""The shape of a 1.1e9 model: 0.97e9 parameters in its linears, 0.07e9 in its head."""
BRANCH = 0.3
"""What a layer's outputs are scaled by."""
SHARPNESS = 1.6
"""Weight of the final norm."""
NEEDED_GB = 3.0


def make(cache: Path) -> Path:
    """The folder of the model, written once.

    Raises:
        AprilError: where the disk is too small.
    """
    folder = cache / f"synthetic-1b-{BRANCH:g}-{SHARPNESS:g}"
    if not folder.is_dir() and (free := shutil.disk_usage(cache).free / 1e9) < NEEDED_GB:
        raise AprilError(f"{cache}: {free:.1f} GB are free, the synthetic model needs {NEEDED_GB:.0f}")
    ensure(folder, _write)
    return folder


def _write(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)

    def random(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator, dtype=torch.float32)
        return values.mul_(scale / columns**0.5).bfloat16()

    def ones(value: float = 1.0) -> torch.Tensor:
        return torch.full((HIDDEN,), value, dtype=torch.bfloat16)

    kv = HIDDEN // HEADS * KV_HEADS
    weights = {
        "model.embed_tokens.weight": random(VOCABULARY, HIDDEN, HIDDEN**0.5),
        "lm_head.weight": random(VOCABULARY, HIDDEN),
        "model.norm.weight": ones(SHARPNESS),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        weights |= {
            f"{at}.self_attn.q_proj.weight": random(HIDDEN, HIDDEN),
            f"{at}.self_attn.k_proj.weight": random(kv, HIDDEN),
            f"{at}.self_attn.v_proj.weight": random(kv, HIDDEN),
            f"{at}.self_attn.o_proj.weight": random(HIDDEN, HIDDEN, BRANCH),
            f"{at}.mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{at}.mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{at}.mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE, BRANCH),
            f"{at}.input_layernorm.weight": ones(),
            f"{at}.post_attention_layernorm.weight": ones(),
        }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
