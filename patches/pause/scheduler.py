"""The scheduler keeps its requests over a weight update. ``around`` wraps the methods of SGLang's Scheduler.

Invariants:
* retract: when generation goes on under new weights, the KV cache is empty;
* in place: then no KV is left but what live requests use, and it is counted (``stale_kv_tokens``);
* a token's version is that of the weights that the batch which produced it ran with, also where a batch that was
  launched before the pause is processed after it (the overlapped scheduler).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from april.patches.pause.token_versions import TokenVersions

logger = logging.getLogger(__name__)

KEY = "token_versions"
"""Of an answer's ``meta_info``: the weight version of each token."""
REPORT = "april_pause"
"""Of ``/server_info``'s internal state: what the pauses did."""
RETRACT, IN_PLACE = "retract", "in_place"
UPDATES = frozenset(
    {
        "UpdateWeightFromDiskReqInput",
        "UpdateWeightsFromDistributedReqInput",
        "UpdateWeightsFromTensorReqInput",
        "UpdateWeightsFromIPCReqInput",
    }
)
STATE = "_april_pause"


@dataclass(slots=True)
class PauseState:
    """What we keep with a scheduler.

    mode
        Of the pause that lasts, None while it runs.
    version, updated
        The newest weight version that it was told, and whether weights came since it last ran.
    late
        Requests whose last launched batch, of the old weights, is still to be processed, by identity.
    batch
        The scheduler's current batch, taken from it while it is paused in place: its watchdog watches it.
    """

    version: str
    mode: str | None = None
    updated: bool = False
    late: dict[int, Any] = field(default_factory=dict)
    batch: Any = None
    report: dict[str, Any] = field(
        default_factory=lambda: {"updates": 0, "kept_requests": 0, "stale_kv_tokens": 0, "total_stale_kv_tokens": 0}
    )


def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wraps each of ``METHODS`` by its name."""
    return METHODS[original.__name__](original, *args, **kwargs)


def state_of(scheduler: Any) -> PauseState:
    """The state of a scheduler, made when it is first asked for."""
    state: PauseState | None = getattr(scheduler, STATE, None)
    if state is None:
        state = PauseState(str(scheduler.server_args.weight_version))
        setattr(scheduler, STATE, state)
    return state


# Pause and continue


def _pause_generation(original: Callable[..., Any], self: Any, request: Any) -> None:
    original(self, request)
    state = state_of(self)
    state.mode = request.mode
    if request.mode == IN_PLACE and state.batch is None:
        state.batch, self.cur_batch = self.cur_batch, None
    if request.mode == RETRACT:
        # What was running goes on before what never started.
        self.waiting_queue.sort(key=lambda req: not req.output_ids)


def _continue_generation(original: Callable[..., Any], self: Any, request: Any) -> None:
    state = state_of(self)
    if state.updated:
        _renew(self, state)
    if state.batch is not None:
        self.cur_batch, state.batch = state.batch, None
    state.mode = None
    original(self, request)


def _renew(self: Any, state: PauseState) -> None:
    """Weights came: live requests go on with the new version, and what KV is left is counted."""
    live = _live(self, state)
    if state.mode == RETRACT and not self.flush_cache():
        raise RuntimeError("april: retracted requests still hold KV; it would be used with weights that it is not of")
    if state.mode == IN_PLACE:
        _drop_unused(self)
    late = {id(req): req for batch, _ in _results(self) for req in batch.reqs}
    state.late |= late
    for key, req in live.items():
        if key not in late:
            _mark(req, state.version)
    allocator = self.token_to_kv_pool_allocator
    stale = int(allocator.size - allocator.available_size())
    state.report["updates"] += 1
    state.report["kept_requests"] = len(live)
    state.report["stale_kv_tokens"] = stale
    state.report["total_stale_kv_tokens"] += stale
    state.updated = False


def _mark(req: Any, version: str) -> None:
    versions = (req.customized_info or {}).get(KEY)
    if versions is not None:
        versions.mark(len(req.output_ids), version)


def _live(self: Any, state: PauseState) -> dict[int, Any]:
    """Every request that will go on, by identity."""
    batches = [self.running_batch, self.last_batch, self.cur_batch, state.batch]
    batches += [batch for batch, _ in _results(self)]
    found = [*self.waiting_queue, *self.grammar_manager.grammar_queue]
    found += [req for batch in batches if batch is not None for req in batch.reqs]
    if self.chunked_req is not None:
        found.append(self.chunked_req)
    return {id(req): req for req in found if not req.finished()}


def _results(self: Any) -> list[Any]:
    """Batches that were launched and not processed: (batch, result)."""
    return list(self.result_queue) if self.enable_overlap else []


def _process_batch_result(original: Callable[..., Any], self: Any, batch: Any, result: Any) -> Any:
    answer = original(self, batch, result)
    state = state_of(self)
    if state.late:
        for req in batch.reqs:
            if state.late.pop(id(req), None) is not None:
                _mark(req, state.version)
    return answer


# Versions


def _process_input_requests(original: Callable[..., Any], self: Any, requests: list[Any]) -> Any:
    for request in requests:
        if type(request).__name__ in UPDATES:
            state = state_of(self)
            state.updated = True
            if request.weight_version is not None:
                state.version = str(request.weight_version)
    answer = original(self, requests)
    state = state_of(self)
    if state.mode is None:
        # Not paused: SGLang has let every request end before these weights came.
        state.updated = False
    return answer


def _add_request_to_queue(original: Callable[..., Any], self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    if req.customized_info is None:
        req.customized_info = {}
    req.customized_info.setdefault(KEY, TokenVersions(state_of(self).version))
    return original(self, req, *args, **kwargs)


# Idleness and flushing


def _is_fully_idle(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> bool:
    if state_of(self).mode != RETRACT:
        return bool(original(self, *args, **kwargs))
    with _queued_hidden(self):
        return bool(original(self, *args, **kwargs))


def _flush_cache(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> bool:
    state = state_of(self)
    if state.mode == IN_PLACE and _live(self, state):
        _drop_unused(self)
        return True
    done = bool(original(self, *args, **kwargs))
    if done and state.mode == RETRACT:
        for req in self.waiting_queue:
            # A match with the cache that is no more; it is looked up again when the request is scheduled.
            req.prefix_indices = req.prefix_indices[:0]
            req.last_node = None
    return done


@contextlib.contextmanager
def _queued_hidden(self: Any) -> Iterator[None]:
    waiting, grammar = self.waiting_queue, self.grammar_manager.grammar_queue
    self.waiting_queue, self.grammar_manager.grammar_queue = [], []
    try:
        yield
    finally:
        self.waiting_queue, self.grammar_manager.grammar_queue = waiting, grammar


def _drop_unused(self: Any) -> None:
    """Evict what no live request uses: a new request must not be built on it."""
    from sglang.srt.mem_cache.common import evict_from_tree_cache

    evict_from_tree_cache(self.tree_cache, self.token_to_kv_pool_allocator.size)


# Abort and report


def _abort_request(original: Callable[..., Any], self: Any, request: Any) -> Any:
    """A retracted request in the queue ends with the tokens that it has; SGLang's own abort loses them.

    It is scheduled once more and then ends, as a running one does (sglang#11673).
    """
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    begun = [req for req in self.waiting_queue if req.output_ids]
    for req in begun:
        if request.abort_all or req.rid.startswith(request.rid):
            req.to_finish = FINISH_ABORT()
    queue = self.waiting_queue
    self.waiting_queue = [req for req in queue if not req.output_ids]
    try:
        return original(self, request)
    finally:
        left = {id(req) for req in (*begun, *self.waiting_queue)}
        self.waiting_queue = [req for req in queue if id(req) in left]


def _get_internal_state(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    answer = original(self, *args, **kwargs)
    state = state_of(self)
    answer.internal_state[REPORT] = {**state.report, "mode": state.mode, "version": state.version}
    return answer


METHODS: dict[str, Callable[..., Any]] = {
    "pause_generation": _pause_generation,
    "continue_generation": _continue_generation,
    "process_input_requests": _process_input_requests,
    "process_batch_result": _process_batch_result,
    "_add_request_to_queue": _add_request_to_queue,
    "is_fully_idle": _is_fully_idle,
    "flush_cache": _flush_cache,
    "abort_request": _abort_request,
    "get_internal_state": _get_internal_state,
}
