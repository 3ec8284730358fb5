"""The reward: reasoning-gym's own verifier on the result that the response ends with. Given to the host as
``--custom-rm-path``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


async def rm(args: Any, sample: Any, **kwargs: Any) -> float:
    """The host's reward hook: 1 or 0 for one sample with ``response`` and ``metadata``."""
    del args, kwargs
    return score(sample.response, sample.metadata)


def score(response: str, metadata: dict[str, Any]) -> float:
    """1 when the verifier gives full marks, else 0: its part marks for "62" inside "162" would teach nonsense."""
    found = answer(response)
    if found is None:
        return 0.0
    return float(_verifier(metadata["dataset"])(found, metadata["entry"]) == 1.0)


def answer(response: str) -> str | None:
    """The last number in the response, or None."""
    numbers = NUMBER.findall(response)
    return numbers[-1] if numbers else None


@functools.cache
def _verifier(dataset: str) -> Callable[[str, dict[str, Any]], float]:
    import reasoning_gym

    verify: Callable[[str, dict[str, Any]], float] = reasoning_gym.get_score_answer_fn(dataset)
    return verify
