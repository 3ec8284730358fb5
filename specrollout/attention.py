"""Attention of drafting and verifying on a CPU: ``width`` new tokens of each sequence over its cached context.

SGLang's ``torch_native`` backend handles one sequence at a time, and pads a verify step's queries to the whole context,
which costs O(S^2). Here a step's sequences are gathered in padded blocks, longest first, once for all layers: slots and
mask are made when the step begins. Cost is O(width x S).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from specrollout.blocks import blocks


@dataclass(slots=True)
class Block:
    """Sequences that are attended together.

    rows: their places in the batch, [n]. slots: [n, longest] of the KV pool. mask: [n, 1, width, longest], True where a
    query may look, or None where nothing is masked.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor | None


class ChainAttention(TorchNativeAttnBackend):  # type: ignore[misc]
    """The backend of draft and verify steps; call :meth:`plan` before each."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        self._blocks: list[Block] = []
        self._width = 1

    def plan(self, requests: torch.Tensor, lengths: list[int], width: int) -> None:
        """``lengths``: tokens of each sequence that are in the cache before the step, the ``width`` new ones not."""
        self._width = width
        self._blocks = []
        table = self.req_to_token_pool.req_to_token
        for block in blocks([length + width for length in lengths]):
            rows = torch.tensor(block)
            longest = lengths[block[0]] + width
            slots = table[requests[rows], :longest].long()
            mask = None
            if width > 1 or lengths[block[-1]] + width < longest:
                own = torch.tensor([lengths[row] for row in block]).view(-1, 1, 1)
                mask = torch.arange(longest) <= own + torch.arange(width).view(1, -1, 1)
                last = own.view(-1, 1) + width
                slots = slots.masked_fill(torch.arange(longest) >= last, 0)
                mask = mask.unsqueeze(1)
            self._blocks.append(Block(rows, slots, mask))

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Made by :meth:`plan`."""

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """q: [batch x width, heads x size]; returns the same shape (value size)."""
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache)

    forward_extend = forward_decode

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Any, forward_batch: Any, save: bool
    ) -> torch.Tensor:
        pool = self.token_to_kv_pool
        if save:
            pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        keys_cache, values_cache = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        kv_heads = layer.tp_k_head_num
        # Query heads of one key head become query positions, so that grouped-query attention copies no keys.
        query = q.view(-1, self._width, kv_heads, layer.tp_q_head_num // kv_heads, layer.qk_head_dim)
        output = q.new_empty(query.shape[0], self._width, layer.tp_q_head_num * layer.v_head_dim)
        for block in self._blocks:
            keys, values = (cache[block.slots].transpose(1, 2) for cache in (keys_cache, values_cache))
            grouped = query[block.rows].permute(0, 2, 3, 1, 4)  # [n, kv_heads, group, width, size]
            mask = None
            if block.mask is not None:
                mask = block.mask.expand(-1, grouped.shape[2], -1, -1).flatten(1, 2).unsqueeze(1)
            attended = F.scaled_dot_product_attention(
                grouped.flatten(2, 3), keys.to(q.dtype), values.to(q.dtype), attn_mask=mask, scale=layer.scaling
            )
            attended = attended.unflatten(2, (-1, self._width)).permute(0, 3, 1, 2, 4)
            output[block.rows] = attended.flatten(2)
        return output.view(q.shape[0], -1)


def refusal(model_runner: Any) -> str | None:
    """Why :class:`ChainAttention` cannot serve this model; None where it can."""
    if type(model_runner.attn_backend) is not TorchNativeAttnBackend:
        return f"its attention backend is {type(model_runner.attn_backend).__name__}, not torch_native"
    if model_runner.model_config.is_encoder_decoder:
        return "it has cross attention"
    if model_runner.attn_backend.use_sliding_window_kv_pool or model_runner.sliding_window_size:
        return "it has sliding windows"
    if getattr(model_runner, "use_mla_backend", False):
        return "it has latent attention (MLA)"
    return None
