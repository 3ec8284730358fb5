"""Decode attention of the ``torch_native`` backend for all sequences of the batch at once.

SGLang's CPU fallback loops over the sequences in Python, several tensor operations each. Here the sequences are
gathered into padded blocks, longest first, and each block is one call of scaled dot-product attention. Query heads of
one key head become the query positions of that call, so that grouped-query attention needs no copy of keys and
values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from specrollout.blocks import blocks


def forward_decode(
    original: Callable[..., torch.Tensor],
    self: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """One decode step.

    Args:
        query: [batch, heads, head_size], one token of each sequence.
        output: [batch, heads, v_head_size], filled and returned.
        k_cache: [slots, kv_heads, head_size], and ``v_cache`` [slots, kv_heads, v_head_size].
        req_to_token: [requests, context]: slot of each position of a request.
        req_pool_indices: [batch], row of ``req_to_token`` of each sequence.
        seq_lens: [batch], tokens of each sequence, the new one included.
        encoder_lens: for cross attention, which stays with SGLang's own loop, as sliding windows do.
    """
    if encoder_lens is not None or options.get("sliding_window_size") is not None or query.shape[0] == 1:
        extra = () if encoder_lens is None else (encoder_lens,)  # SGLang 0.5.12 does not have it
        return original(
            self, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, *extra, **options
        )
    lengths = seq_lens.tolist()
    for block in blocks(lengths):
        rows = torch.tensor(block)
        longest = lengths[block[0]]
        slots = req_to_token[req_pool_indices[rows], :longest]
        valid = torch.arange(longest) < seq_lens[rows].unsqueeze(1)
        slots = slots.masked_fill(~valid, 0)
        keys, values = (cache[slots].transpose(1, 2).to(query.dtype) for cache in (k_cache, v_cache))
        kv_heads = keys.shape[1]
        grouped = query[rows].unflatten(1, (kv_heads, -1))
        attended = F.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=valid[:, None, None, :], scale=options.get("scaling")
        )
        output[rows] = attended.flatten(1, 2)
    return output
