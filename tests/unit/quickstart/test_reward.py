"""The verifier judges the number that a response ends with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from april.launch.quickstart import reward

METADATA: dict[str, Any] = {"dataset": "basic_arithmetic", "entry": {"answer": "62"}}


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("17+5=22;22+40=62\n62<eos>", 1.0),
        ("The result is\n62.<|im_end|>", 1.0),
        ("17+5=22;22+40=62\n63<eos>", 0.0),
        ("162<eos>", 0.0),
        ("6<eos>", 0.0),
        ("-62<eos>", 0.0),
        ("62.5<eos>", 0.0),
        ("?=<eos>", 0.0),
        ("", 0.0),
    ],
)
async def test_reward_of_the_last_number(response: str, expected: float) -> None:
    assert await reward.rm(None, SimpleNamespace(response=response, metadata=METADATA)) == expected
