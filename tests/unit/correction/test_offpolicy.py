"""Metrics of a round, and what is derived from those of a step."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fake_data import Sample, Status

from april import samples
from april.core import Group, Leg, RoundPlan, RoundResult
from april.telemetry.offpolicy import (
    LengthTrend,
    TrainerWatch,
    lag_histogram,
    off_policy_share,
    repetition,
    repetition_rate,
    round_metrics,
)


def sample(tokens: list[int], *legs: Leg, mask: list[int] | None = None) -> Any:
    made = Sample(index=0, group_index=0, prompt="x", tokens=[9, 9, *tokens], response_length=len(tokens), reward=1.0)
    made.status, made.loss_mask = Status.COMPLETED, mask
    samples.note(made, legs=[leg.to_dict() for leg in legs])
    return made


def result(*given: Any, version: int = 5) -> RoundResult:
    groups = [Group(i, [samples.trajectory(one)]) for i, one in enumerate(given)]
    plan = RoundPlan(rollout_id=1, policy_version=version, target=1, over_sampling=1, max_response_len=9)
    return RoundResult(plan=plan, trained=groups)


def test_lags_are_counted_by_token() -> None:
    histogram = lag_histogram([Leg(5, 0, 6, 0), Leg(3, 0, 3, 0), Leg(5, 3, 1, 0), Leg(6, 0, 2, 0)], 5)
    assert histogram == {0: 9, 2: 3}
    assert off_policy_share(histogram) == 0.25
    assert off_policy_share({}) == 0


def test_repeated_ngrams() -> None:
    assert repetition_rate([1, 2, 3]) == 0
    assert repetition_rate([1, 2, 3, 4, 5]) == 0
    assert repetition_rate([7] * 13) == pytest.approx(0.9)
    assert repetition_rate([1, 2, 3, 1, 2], n=2) == 0.25
    assert repetition([]) == 0
    assert repetition([[7] * 13, [1, 2, 3, 4, 5]]) == pytest.approx(0.45)
    assert repetition([[7] * 13] * 1000) == pytest.approx(0.9)


def test_length_against_the_average_before() -> None:
    trend = LengthTrend()
    assert trend.growth([10, 10]) == 1
    assert trend.growth([15]) == 1.5
    assert trend.growth([21]) == pytest.approx(21 / 10.5)
    assert trend.growth([]) == 1


def test_metrics_of_a_round() -> None:
    one = sample([1, 2, 3, 4], Leg(4, 0, 1, 0), Leg(5, 1, 3, 1))
    assert round_metrics(result(one), LengthTrend()) == {
        "april/off_policy_share": 0.25,
        "april/lag_tokens/0": 3,
        "april/lag_tokens/1": 1,
        "april/length_growth": 1,
        "april/repetition_rate": 0,
        "april/nothing_trained": 0,
    }


def test_a_round_without_any_weight_is_told(caplog: pytest.LogCaptureFixture) -> None:
    one = sample([1, 2], Leg(4, 0, 2, 0), mask=[0, 0])
    with caplog.at_level(logging.WARNING):
        assert round_metrics(result(one), LengthTrend())["april/nothing_trained"] == 1
    assert "no trained token has weight" in caplog.text


def step(kl: float = 0.0, share: float = 0.5, rejected: float = 0.0, counted: float = 1.0) -> dict[str, Any]:
    """Means of a step in which the share ``counted`` of all responses has tokens that the loss counts."""
    means = {"weight": 0.8, "weight_sq": 0.8, "off_policy": share, "kl_off": kl * share, "kl_on": 0.001 * (1 - share)}
    means |= {"rejected": rejected, "counted": 1.0}
    return {f"train/april_{name}": value * counted for name, value in means.items()}


@pytest.mark.parametrize("counted", [1.0, 0.25])
def test_what_the_means_of_a_step_give(counted: float) -> None:
    derived = TrainerWatch().derive(step(kl=0.02, counted=counted))
    assert derived == pytest.approx(
        {
            "train/april_ess": 0.8,
            "train/april_kl": 0.02,
            "train/april_kl_change": 0,
            "train/april_kl_alarm": 0,
            "train/april_kl_numerics": 0.001,
            "train/april_all_rejected": 0,
        }
    )
    assert TrainerWatch().derive({"train/loss": 1.0}) == {}


def test_the_alarm_is_told_when_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    watch = TrainerWatch()
    alarms = []
    with caplog.at_level(logging.WARNING):
        for kl in (0.001, 0.002, 0.02, 0.04, 0.041, 0.06, float("nan")):
            alarms.append(watch.derive(step(kl=kl))["train/april_kl_alarm"])
    assert alarms == [0, 0, 1, 1, 0, 1, 1]
    assert len(caplog.records) == 2
    assert "from 0.0020 to 0.0200 nats a token" in caplog.text


def test_a_step_without_old_tokens_neither_alarms_nor_forgets() -> None:
    watch = TrainerWatch()
    watch.derive(step(kl=0.001))
    assert "train/april_kl" not in watch.derive(step(share=0.0))
    assert watch.derive(step(kl=0.02))["train/april_kl_alarm"] == 1


def test_a_step_that_trains_nothing_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = TrainerWatch()
    with caplog.at_level(logging.WARNING):
        assert [watch.derive(step(rejected=share))["train/april_all_rejected"] for share in (1, 1, 0.5)] == [1, 1, 0]
    assert caplog.text.count("every response of a step was rejected") == 1
