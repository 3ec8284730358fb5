"""Megatron's layer spec for a CPU: ``--spec april.patches.cpu.layer_spec get_spec``.

Three things differ from Megatron's local spec. Attention takes the packed sequences (thd) that slime and miles always
send. The norms before qkv and before the MLP live inside the linear layers, under the names that Transformer Engine
gives them, which the hosts' weight converters look for. And no fused kernel is asked for.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.identity_op import IdentityOp


class NormedColumnParallelLinear(ColumnParallelLinear):  # type: ignore[misc]
    """A column-parallel linear layer that applies RMSNorm to its input."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.eps = config.layernorm_epsilon
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))

    def forward(self, input_: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """RMSNorm in fp32, then the linear layer; ``input_`` is [tokens, batch, hidden]."""
        normed = F.rms_norm(input_.float(), (input_.size(-1),), self.layer_norm_weight.float(), self.eps)
        return super().forward(normed.to(input_.dtype), *args, **kwargs)


class PackedDotProductAttention(DotProductAttention):  # type: ignore[misc]
    """Causal attention over packed sequences, one call of SDPA for each."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        """query [t, heads, d], key and value [t, kv_heads, d] -> [t, heads * d], t over all packed sequences."""
        if packed_seq_params is None:
            dense: torch.Tensor = super().forward(
                query, key, value, attention_mask, attn_mask_type, attention_bias, None
            )
            return dense
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        outputs = []
        for start, end in itertools.pairwise(bounds):
            q, k, v = (part[start:end].transpose(0, 1).unsqueeze(0) for part in (query, key, value))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale, enable_gqa=True)
            outputs.append(out[0].transpose(0, 1))
        return torch.cat(outputs).reshape(query.size(0), -1)


def get_spec(args: Any, config: Any, vp_stage: int | None = None) -> Any:
    """The layer spec, as Megatron's ``--spec MODULE FUNCTION`` calls it."""
    del config, vp_stage
    spec = get_gpt_layer_local_spec(qk_layernorm=args.qk_layernorm, normalization=args.normalization)
    layer = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = IdentityOp
    layer.self_attention.submodules.linear_qkv = NormedColumnParallelLinear
    layer.self_attention.submodules.core_attention = PackedDotProductAttention
    layer.mlp.submodules.linear_fc1 = NormedColumnParallelLinear
    return spec
