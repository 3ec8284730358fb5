"""What a request asks of the engine: the tokens that its response may still have in this round, and its priority.

The hosts have no hook between a sample and its request. Three things go there:
* a resumed response asks for what is left of its length (up to 0.3.1 slime asks for all of it again, slime#2260);
* a leg budget ends the request earlier; the response is then aborted, not truncated: it goes on in a later round;
* the priority of its group, where SGLang schedules by priority;
* a name, where requests may stay in the engines when a round ends, so that each can be aborted.
What is asked comes with the sample (``april.samples.Request``); without it only the first holds, and it changes nothing
where the host has subtracted already. Custom generate functions send their own requests.
"""

from __future__ import annotations

import contextvars
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from april import samples
from april.patches.patcher import Patcher

TOKEN_VERSIONS = "token_versions"
_request: contextvars.ContextVar[_Asked | None] = contextvars.ContextVar("april_request", default=None)


@dataclass(slots=True)
class _Asked:
    """What the next request asks for, and then the weight version of each token of its answer, where it says."""

    tokens: int
    request: samples.Request
    versions: list[Any] | None = None


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Wrap ``generate(args, sample, sampling_params)``, and the ``post(url, payload)`` that it sends with."""

    async def generate(original: Any, args: Any, sample: Any, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        asked = samples.request_of(sample)
        before, left = sample.response_length, sampling_params["max_new_tokens"] - sample.response_length
        tokens = left if asked.tokens is None else min(left, asked.tokens)
        request = _Asked(tokens, asked)
        token = _request.set(request)
        try:
            sample = await original(args, sample, sampling_params, **kwargs)
        finally:
            _request.reset(token)
        if request.versions is not None and asked.rid is not None:
            samples.note_versions(sample, request.versions)
        if tokens < left and sample.response_length - before >= tokens and sample.status.value == "truncated":
            sample.status = type(sample.status)("aborted")
        return sample

    async def post(original: Any, url: str, *args: Any, **kwargs: Any) -> Any:
        asked = _request.get()
        if asked is None or not (args and isinstance(args[0], dict) and "sampling_params" in args[0]):
            return await original(url, *args, **kwargs)
        answer = await original(url, _shaped(args[0], asked), *args[1:], **kwargs)
        if asked.request.rid is not None:
            asked.versions = answer["meta_info"].get(TOKEN_VERSIONS)
        return answer

    patcher.wrap(module, "generate", generate)
    patcher.wrap(module, "post", post)


def _shaped(payload: dict[str, Any], asked: _Asked) -> dict[str, Any]:
    parameters = payload["sampling_params"]
    clamped = {**parameters, "max_new_tokens": min(parameters["max_new_tokens"], asked.tokens)}
    extra = {"priority": asked.request.priority, "rid": asked.request.rid}
    return {**payload, "sampling_params": clamped, **{key: value for key, value in extra.items() if value is not None}}
