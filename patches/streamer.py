"""A response of which there is nothing yet is not sent: SGLang would count its first log probability as sent.

A request that is retracted before the result of its prefill is read has no token. Upstream streams it nevertheless
(0 is a multiple of its interval) and moves the offset of the log probabilities to 1, so that the answer has k tokens
and k - 1 log probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def accept(original: Callable[..., Any], self: Any, *, req: Any) -> None:
    """Around ``_GenerationStreamAccumulator.accept``."""
    if req.finished() or len(req.output_ids):
        original(self, req=req)
