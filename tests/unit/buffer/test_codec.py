"""Groups as bytes and back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from fake_buffer import opened, sample

from april import samples
from april.buffer.codec import pack


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1] * 20, "b"),
        ([0, -129, 5], "h"),
        ([0, 150_000], "i"),
        ([0, 2**40], "q"),
        ([0, 2**70], None),
        ([0.5, -0.25, -0.0, math.inf], "f"),
        ([0.1, -0.25], "d"),
        ([math.nan, 0.5], "d"),
        ([1e300], "d"),
        ([True, False], None),
        ([1, 2.0], None),
        (["a"], None),
        ([None], None),
    ],
)
def test_numbers_are_packed_only_without_loss(values: list[Any], kind: str | None) -> None:
    packed = pack(values)
    assert (packed and packed.typecode) == kind
    if packed is not None:
        assert list(map(repr, packed.tolist())) == list(map(repr, values))


def test_everything_a_sample_has_comes_back(tmp_path: Path) -> None:
    made = sample(3, 40, 2, ended=True, label="x", session_id="s", loss_mask=[1, 0] * 20)
    made.metadata["nested"] = {"list": [1.5] * 100, "none": None}
    made.reward = {"score": 0.1}
    fan = [sample(3, 5, 1, ended=True), sample(3, 7, 1, ended=True)]
    samples.note(fan[0], origin=sample(3, 0, 0, ended=False))
    buffer = opened(tmp_path)
    buffer.put([samples.group_of([made, fan])])
    [taken] = buffer.take(1)
    assert samples.payload(taken) == [made, fan]
    assert taken == samples.group_of([made, fan])
