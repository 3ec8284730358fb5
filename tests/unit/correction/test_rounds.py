"""What the rollout function hands to the trainer: masks or lags, and nothing where nothing is corrected."""

from __future__ import annotations

from typing import Any

import pytest
from fake_host import World, arguments, source_for

from april import samples
from april.core import Leg
from april.correction.lags import LaggedLength
from april.rollout import generate_rollout
from april.staleness import capped_mask


def rounds(world: World, **changes: Any) -> list[tuple[int, Any, dict[str, float]]]:
    """Every sample trained in six rounds, with the version of its round and the round's metrics."""
    args = arguments(**changes)
    source = source_for(args)
    trained = []
    for number in range(1, 7):
        world.server.weight_version = str(number)
        output = generate_rollout(args, number, source)
        trained += [(source.clock.last, sample, output.metrics) for sample in samples.leaves(output.samples)]
    assert any(old for version, sample, _ in trained for old in lags(version, sample)), "no token is off-policy"
    return trained


def lags(version: int, sample: Any) -> list[int]:
    return [version - leg.policy_version for leg in samples.legs_of(sample) for _ in range(leg.length)]


@pytest.mark.parametrize("method", ["tis", "decoupled"])
def test_lengths_know_their_lags(world: World, method: str) -> None:
    for version, sample, metrics in rounds(world, april_correction=method):
        assert isinstance(sample.response_length, LaggedLength)
        assert sample.response_length.lags == lags(version, sample)
        assert len(sample.rollout_log_probs) == sample.response_length
        assert sample.loss_mask is None or all(sample.loss_mask)
        assert 0 <= metrics["april/off_policy_share"] <= 1
        assert metrics["april/lag_tokens/0"] > 0


def test_masking_leaves_on_policy_tokens_and_samples_alone(world: World) -> None:
    for version, sample, _ in rounds(world, april_correction="mask"):
        assert type(sample.response_length) is int
        if any(lags(version, sample)):
            assert sample.loss_mask == [int(lag == 0) for lag in lags(version, sample)]
        else:
            assert sample.loss_mask is None


def test_without_correction_samples_are_as_they_were(world: World) -> None:
    for _, sample, _ in rounds(world):
        assert type(sample.response_length) is int
        assert sample.loss_mask is None


def test_masking_never_gives_weight_back() -> None:
    """A custom generate function's own zeros stay."""
    assert capped_mask([0, 1, 0, 1], [Leg(1, 0, 2, 0), Leg(2, 2, 2, 0)], 2, 0) == [0, 0, 0, 1]
