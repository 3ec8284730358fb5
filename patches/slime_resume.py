"""Gives a resumed response the token budget that is left to it (slime#2260).

Up to release 0.3.1 slime asks for the full ``max_new_tokens`` again when it resumes a response; the pin does not.
The clamp changes nothing where slime has subtracted already.
"""

from __future__ import annotations

import contextvars
from types import ModuleType
from typing import Any

from april.patches.patcher import Patcher

_left: contextvars.ContextVar[int | None] = contextvars.ContextVar("april_tokens_left", default=None)


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Wrap ``generate(args, sample, sampling_params)``, and the ``post(url, payload)`` that it sends with."""

    async def generate(original: Any, args: Any, sample: Any, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        token = _left.set(sampling_params["max_new_tokens"] - sample.response_length)
        try:
            return await original(args, sample, sampling_params, **kwargs)
        finally:
            _left.reset(token)

    async def post(original: Any, url: str, *args: Any, **kwargs: Any) -> Any:
        left = _left.get()
        if left is not None and args and isinstance(args[0], dict) and "sampling_params" in args[0]:
            asked = args[0]["sampling_params"]
            clamped = {**asked, "max_new_tokens": min(asked["max_new_tokens"], left)}
            args = ({**args[0], "sampling_params": clamped}, *args[1:])
        return await original(url, *args, **kwargs)

    patcher.wrap(module, "generate", generate)
    patcher.wrap(module, "post", post)
