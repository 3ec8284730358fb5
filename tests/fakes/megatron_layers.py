"""Build a small GPT model with our layer spec and run packed sequences through it: prints the logits' shape."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: F401
from megatron.core.transformer.transformer_config import TransformerConfig

from april.patches.cpu import cuda_redirect, layer_spec
from april.patches.patcher import Patcher


def main() -> None:
    cuda_redirect.apply(None, Patcher())  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        config = TransformerConfig(
            num_layers=2,
            hidden_size=32,
            num_attention_heads=4,
            num_query_groups=2,
            kv_channels=8,
            use_cpu_initialization=True,
            normalization="RMSNorm",
            add_bias_linear=False,
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            attention_dropout=0.0,
            hidden_dropout=0.0,
            bias_activation_fusion=False,
            masked_softmax_fusion=False,
            persist_layer_norm=False,
            bias_dropout_fusion=False,
            apply_rope_fusion=False,
        )
        args = Namespace(qk_layernorm=True, normalization="RMSNorm")
        torch.manual_seed(0)
        model = GPTModel(
            config,
            layer_spec.get_spec(args, config),
            vocab_size=64,
            max_sequence_length=64,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=True,
        ).float()
        bounds = torch.tensor([0, 5, 12], dtype=torch.int32)
        packed = PackedSeqParams("thd", bounds, bounds, max_seqlen_q=7, max_seqlen_kv=7)
        tokens = torch.arange(12).unsqueeze(0)
        together = model(tokens, torch.arange(12).unsqueeze(0), None, packed_seq_params=packed)
        ends = torch.tensor([0, 7], dtype=torch.int32)
        alone = PackedSeqParams("thd", ends, ends, max_seqlen_q=7, max_seqlen_kv=7)
        second = model(tokens[:, 5:], torch.arange(7).unsqueeze(0), None, packed_seq_params=alone)
        together.sum().backward()
        torch.testing.assert_close(together[0, 5:], second[0], atol=1e-5, rtol=1e-4)
        assert all(parameter.grad is not None for parameter in model.parameters())
        print("layers", tuple(together.shape))
    os._exit(0)


if __name__ == "__main__":
    main()
