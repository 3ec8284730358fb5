"""``QUANT_SELF`` in SGLang's registry of speculative algorithms.

The registry's base class lacks three methods that the scheduler calls on an algorithm (``create_future_map``,
``need_topk``, ``carries_draft_hidden_states``); they are here.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from specrollout.settings import of_environment


class QuantSelf(CustomSpecAlgo):  # type: ignore[misc]
    """A chain of drafts from the target's own weights; no KV and no hidden states of its own."""

    def create_future_map(self, device: Any, req_to_token_pool: Any, needs_cpu_seq_lens: bool = True) -> Any:
        """Where overlapped steps leave their last tokens and lengths."""
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens)

    def need_topk(self) -> bool:
        """A chain has one candidate a position."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """The drafter starts from a token alone."""
        return False

    def has_draft_kv(self) -> bool:
        """It writes into the target's slots, which verification overwrites."""
        return False

    def handle_server_args(self, server_args: Any) -> None:
        """Reserve slots for the longest draft. ``max_running_requests`` stays as it is: a rollout wants many."""
        settings = of_environment()
        assert settings is not None, "registered only with settings"
        server_args.speculative_num_steps = settings.longest
        server_args.speculative_eagle_topk = 1
        server_args.speculative_num_draft_tokens = settings.longest + 1
        server_args.enable_mixed_chunk = False
