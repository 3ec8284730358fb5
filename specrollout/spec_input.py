"""What SGLang carries between steps, and what its attention sees in a verify step.

A drafter that shares the target's KV has no state of its own: only the last accepted token, which has no KV yet.
"""

from __future__ import annotations

import torch
from sglang.srt.speculative.spec_info import SpecInput, SpecInputType


class DraftInput(SpecInput):  # type: ignore[misc]
    """The last token of each request, [batch] int64; with overlap scheduling it is read from the future map instead."""

    topk_p = topk_index = hidden_states = draft_probs = None  # the relay of SGLang's own algorithms reads these
    capture_hidden_mode = 0
    positions = None

    def __init__(self, bonus_tokens: torch.Tensor) -> None:
        super().__init__(SpecInputType.EAGLE_DRAFT)
        self.bonus_tokens = bonus_tokens
        self.future_indices: torch.Tensor | None = None

    def get_spec_adjust_token_coefficient(self) -> tuple[int, int]:
        """One token a request."""
        return 1, 1

    def filter_batch(self, new_indices: torch.Tensor, has_been_filtered: bool = True) -> None:
        """Keep these requests."""
        if self.future_indices is not None:
            self.future_indices = self.future_indices[new_indices]
        else:
            self.bonus_tokens = self.bonus_tokens[new_indices]

    def merge_batch(self, other: DraftInput) -> None:
        """Append the requests of another batch."""
        if self.future_indices is not None:
            assert other.future_indices is not None, "a batch with a future joins one without"
            self.future_indices = torch.cat([self.future_indices, other.future_indices])
        else:
            self.bonus_tokens = torch.cat([self.bonus_tokens, other.bonus_tokens])


class VerifyInput(SpecInput):  # type: ignore[misc]
    """A chain of ``width`` tokens a request: plain causal attention, no mask."""

    capture_hidden_mode = 0
    custom_mask = None
    topk = 1

    def __init__(self, draft_token: torch.Tensor, positions: torch.Tensor, width: int) -> None:
        super().__init__(SpecInputType.EAGLE_VERIFY)
        self.draft_token = draft_token
        self.positions = positions
        self.draft_token_num = self.num_tokens_per_req = width

    def get_spec_adjust_token_coefficient(self) -> tuple[int, int]:
        """``width`` tokens a request."""
        return self.draft_token_num, self.draft_token_num
