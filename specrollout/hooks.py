"""What `QUANT_SELF` needs changed in SGLang; each function is called around the one that it is named for.

The rows are in april.patches.table. The first three let the scheduler's paths for speculation run on a CPU, where they
use Triton and CUDA streams; the others tell the drafter of new weights, count truly, and carry settings and metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Original = Callable[..., Any]
WORKER = "_quant_self"
"""Attribute of a ModelRunner: the worker that speculates with it."""
KEY = "specrollout"
"""Name of our part of the server's internal state."""


def assign_slots(
    original: Original,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    out_cache_loc: torch.Tensor,
    batch_size: int,
) -> Any:
    """Write newly allocated slots into the rows of their requests; upstream by a Triton kernel."""
    if req_to_token.device.type != "cpu":
        return original(req_pool_indices, req_to_token, start, end, out_cache_loc, batch_size)
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        if last > first:
            req_to_token[row, first:last] = out_cache_loc[taken : taken + last - first].to(req_to_token.dtype)
            taken += last - first
    return None


def no_kv_copy(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    """A chain moves no KV: on a CPU the Triton kernel for it is not warmed up."""
    if str(self.device).startswith("cpu"):
        self._kv_copy_config = None
        return None
    return original(self, *args, **kwargs)


def resolve_tokens(original: Original, self: Any, batch: Any) -> Any:
    """Take the last tokens out of the future map; upstream records a CUDA stream first."""
    draft = batch.spec_info
    if torch.device(self.device).type != "cpu" or draft is None:
        return original(self, batch)
    indices = draft.future_indices
    if indices is not None and indices.shape[0]:
        draft.bonus_tokens = self.output_tokens_buf[indices]
    return None


def weights_updated(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    """After an update of a ModelRunner's weights by any path the drafter is stale; a failed update may have begun."""
    try:
        return original(self, *args, **kwargs)
    finally:
        worker = getattr(self, WORKER, None)
        if worker is not None:
            worker.weights_changed(_path(original))


def _path(original: Original) -> str:
    return str(getattr(original, "__name__", "update")).removeprefix("update_weights_from_")


def memory_resumed(original: Original, self: Any, request: Any) -> Any:
    """After device memory was resumed the drafter is made again before its first draft."""
    result = original(self, request)
    worker = getattr(self.tp_worker.model_runner, WORKER, None)
    if worker is not None:
        worker.drafter_lost("resume")
    return result


def count_requests(original: Original, self: Any, result: Any, batch: Any) -> Any:
    """Count cycles and drafts of each request: upstream counts a plain step as a cycle that accepted nothing.

    The number of proposed drafts travels behind the histogram of accepted ones, whose length is known.
    """
    live = [not (request.is_retracted or request.finished()) for request in batch.reqs]
    tokens = original(self, result, batch)
    width = result.speculative_num_draft_tokens
    places = self.server_args.speculative_num_draft_tokens
    for request, counted in zip(batch.reqs, live, strict=True):
        if not counted:
            continue
        histogram = request.spec_correct_drafts_histogram
        if width == 1:
            request.spec_verify_ct -= 1
            histogram[0] -= 1
        histogram.extend([0] * (places + 1 - len(histogram)))
        histogram[places] += width - 1
    return tokens


def finish_state(original: Original, self: Any, new_accepted_len: int = 1) -> Any:
    """A run of accepted tokens ends where token by token it would have ended.

    Upstream asks for the length first, so that a stop inside a run that also reaches the limit is not seen, and an
    abort keeps what lies beyond the limit or a stop. Here the run is searched for stops as if there were no limit.
    """
    limit = self.sampling_params.max_new_tokens
    if new_accepted_len <= 1 or self.finished() or not (self.to_finish or len(self.output_ids) >= limit):
        return original(self, new_accepted_len)
    aborting, self.to_finish = self.to_finish, None
    self.sampling_params.max_new_tokens = len(self.output_ids) + 1
    try:
        original(self, new_accepted_len)
    finally:
        self.sampling_params.max_new_tokens = limit
        self.to_finish = aborting
    if self.finished():
        if (self.finished_len if self.finished_len is not None else len(self.output_ids)) < limit:
            self.to_finish = None
            return None
        self.finished_reason = self.finished_len = None
    if aborting and len(self.output_ids) < limit:
        return original(self, new_accepted_len)
    self.to_finish = None
    return original(self, new_accepted_len)  # by length


def meta_info(original: Original, self: Any, meta: dict[str, Any], received: Any, index: int) -> None:
    """True counts of a request: upstream takes every cycle for one of the longest draft."""
    original(self, meta, received, index)
    places = self.server_args.speculative_num_draft_tokens
    histograms = getattr(received, "spec_correct_drafts_histogram", None) or []
    histogram = list(histograms[index]) if index < len(histograms) and histograms[index] else []
    if len(histogram) <= places:
        return
    proposed = histogram.pop(places)
    meta.update(
        accept_counts(received.spec_verify_ct[index], received.spec_num_correct_drafts[index], proposed, histogram)
    )


def accept_counts(cycles: int, accepted: int, proposed: int, histogram: list[int]) -> dict[str, Any]:
    """SGLang's fields of ``meta_info``; rates are left out of a request that was never speculated for."""
    counts: dict[str, Any] = {
        "spec_verify_ct": cycles,
        "spec_num_correct_drafts": accepted,
        "spec_num_proposed_drafts": proposed,
        "spec_accept_token_num": accepted,  # what the hosts read
        "spec_draft_token_num": proposed,
        "spec_accepted_drafts": accepted,
        "spec_proposed_drafts": proposed,
        "spec_correct_drafts_histogram": histogram,
        "spec_accept_histogram": histogram,
    }
    if cycles:
        counts["spec_accept_length"] = 1 + accepted / cycles
        counts["spec_accept_rate"] = accepted / proposed
    return counts


def get_state(original: Original, self: Any, request: Any) -> Any:
    """``GET /server_info``: our report is in ``internal_states[...]["specrollout"]``."""
    answer = original(self, request)
    worker = getattr(self.tp_worker.model_runner, WORKER, None)
    if worker is not None:
        answer.internal_state[KEY] = worker.report()
    return answer


def set_state(original: Original, self: Any, request: Any) -> Any:
    """``POST /set_internal_state`` with ``{"server_args": {"specrollout": {"mode": ..., "gamma": ...}}}``."""
    worker = getattr(self.tp_worker.model_runner, WORKER, None)
    ours = dict(request.server_args)
    if worker is None or KEY not in ours:
        return original(self, request)
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    asked = ours.pop(KEY)
    if ours:
        return SetInternalStateReqOutput(
            updated=False, server_args={"error": f"set {KEY} alone, without other arguments"}
        )
    error = worker.set_state(asked)
    state = {"error": error} if error else {KEY: worker.report()}
    return SetInternalStateReqOutput(updated=error is None, server_args=state)
