"""Forward passes of one model for plain steps, drafts and verification: SGLang's batches made from a ScheduleBatch.

The scheduler restores the batch's fields after the worker's step, so they are set here as each pass needs them. On a
CPU drafts and verification use our own attention, elsewhere the engine's; CUDA graphs serve plain steps only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.layers.utils.logprob import compute_spec_v2_logprobs
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

from specrollout.attention import ChainAttention
from specrollout.spec_input import VerifyInput

Draft = Callable[[torch.Tensor], torch.Tensor]


class Forward:
    """Of one ModelRunner."""

    def __init__(self, runner: Any, target_worker: Any, device: str) -> None:
        self._runner = runner
        self._target = target_worker
        self._cpu = device == "cpu"
        self._backend = ChainAttention(runner) if self._cpu else runner.attn_backend

    def plain_batch(self, batch: Any, tokens: torch.Tensor) -> ForwardBatch:
        """A decode step of the target: ``tokens`` [batch] at position L."""
        slots, _ = self._slots(batch, 1)
        return self._decode_batch(batch, tokens, slots[:, 0])

    def _decode_batch(self, batch: Any, tokens: torch.Tensor, slots: torch.Tensor) -> ForwardBatch:
        lengths, host = batch.seq_lens, batch.seq_lens_cpu
        kept = batch.spec_info, batch.forward_mode, batch.seq_lens_sum
        batch.forward_mode, batch.spec_info, batch.input_ids = ForwardMode.DECODE, None, tokens
        batch.seq_lens, batch.seq_lens_cpu = lengths + 1, None if host is None else host + 1
        batch.seq_lens_sum, batch.out_cache_loc = None, slots
        batch.capture_hidden_mode = CaptureHiddenMode.NULL
        forward = ForwardBatch.init_new(batch, self._runner)
        batch.seq_lens, batch.seq_lens_cpu = lengths, host
        batch.spec_info, batch.forward_mode, batch.seq_lens_sum = kept
        return forward

    @contextmanager
    def drafts(self, batch: Any, gamma: int) -> Iterator[Draft]:
        """A function that takes tokens [batch] of the next position and returns logits [batch, vocab].

        One batch object serves all steps; what a step changes is its tokens, positions, slots and lengths.
        """
        slots, positions = self._slots(batch, gamma)
        forward = self._decode_batch(batch, batch.spec_info.bonus_tokens, slots[:, 0])
        host = None if batch.seq_lens_cpu is None else batch.seq_lens_cpu.tolist()
        step = 0

        def draft(tokens: torch.Tensor) -> torch.Tensor:
            nonlocal step
            forward.input_ids = tokens
            forward.out_cache_loc = slots[:, step].contiguous()
            if step:
                forward.positions = positions[:, step].contiguous()
                forward.seq_lens = forward.seq_lens + 1
                if host is not None:
                    forward.seq_lens_cpu = forward.seq_lens_cpu + 1
                    forward.seq_lens_sum = forward.seq_lens_sum + len(host)
            if self._cpu:
                assert host is not None
                self._backend.plan(batch.req_pool_indices, [length + step for length in host], 1)
            else:
                self._backend.init_forward_metadata(forward)
            step += 1
            output = self._runner.model.forward(forward.input_ids, forward.positions, forward)
            logits: torch.Tensor = output.next_token_logits
            return logits

        with forward_context(ForwardContext(attn_backend=self._backend)):
            yield draft

    def verify_batch(self, batch: Any, chain: torch.Tensor) -> ForwardBatch:
        """``chain`` [batch, width] at positions L .. L + width - 1."""
        width = chain.shape[1]
        slots, positions = self._slots(batch, width)
        batch.spec_info = VerifyInput(chain.reshape(-1), positions.reshape(-1), width)
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.input_ids, batch.out_cache_loc = chain.reshape(-1), slots.reshape(-1)
        batch.capture_hidden_mode = CaptureHiddenMode.NULL
        forward = ForwardBatch.init_new(batch, self._runner)
        if self._cpu:  # torch_native wants the lengths after the write, GPU backends those before it
            forward.seq_lens = batch.seq_lens + width
            forward.seq_lens_cpu = None if batch.seq_lens_cpu is None else batch.seq_lens_cpu + width
        return forward

    @contextmanager
    def verifying(self, batch: Any, width: int) -> Iterator[None]:
        """The target's pass over a verify batch goes in here; no graph that was captured for another pass runs."""
        if not self._cpu:
            graphs, self._runner.decode_cuda_graph_runner = self._runner.decode_cuda_graph_runner, None
            try:
                yield
            finally:
                self._runner.decode_cuda_graph_runner = graphs
            return
        self._backend.plan(batch.req_pool_indices, batch.seq_lens_cpu.tolist(), width)
        with forward_context(ForwardContext(attn_backend=self._backend)):
            own, self._runner.attn_backend = self._runner.attn_backend, self._backend
            try:
                yield
            finally:
                self._runner.attn_backend = own

    @staticmethod
    def logprobs(batch: Any, output: Any, emitted: torch.Tensor) -> None:
        """Logprobs of ``emitted`` [batch, width] as SGLang's sampler reports them, into ``output``."""
        rows = torch.arange(emitted.numel(), device=emitted.device).view(emitted.shape)
        compute_spec_v2_logprobs(batch, output, emitted.reshape(-1), rows, emitted.shape[1] - 1)

    def _slots(self, batch: Any, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """KV slots and positions [batch, width] from L on; the scheduler has reserved them."""
        positions = batch.seq_lens.view(-1, 1) + torch.arange(width, device=batch.seq_lens.device)
        table = self._runner.req_to_token_pool.req_to_token
        return table[batch.req_pool_indices.view(-1, 1), positions].to(torch.int64), positions
