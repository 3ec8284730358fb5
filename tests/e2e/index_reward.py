"""A reward that depends on the sample alone, so that greedy responses of a group still differ in it."""

from __future__ import annotations

from typing import Any


async def rm(args: Any, sample: Any, **kwargs: Any) -> float:
    """1 for every third sample, otherwise 0."""
    return float(sample.index % 3 == 0)
