"""Leg budgets, over-sampling and rewards of parts of groups: the pure parts."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from april import history, legs, oversampling, rewards, samples
from april.core import Group, Span, Trajectory, TrajectoryState, priority
from april.legs import AutoBudget
from april.oversampling import LengthSample
from april.patches import requests
from april.patches.patcher import Patcher


def busy(*times: tuple[float, float]) -> list[Span]:
    return [Span(0, 0, start, end, 1, "finished") for start, end in times]


def test_utilization_is_mean_over_peak() -> None:
    assert legs.utilization([]) is None
    assert legs.utilization(busy((0, 4), (0, 4))) == 1.0
    assert legs.utilization(busy((0, 10), (0, 2), (0, 2), (0, 2))) == pytest.approx(16 / 40)
    assert legs.utilization(busy((0, 1), (1, 2))) == 1.0


def test_legs_get_shorter_where_few_responses_hold_a_round_up_and_longer_where_none_do() -> None:
    tail, full = busy((0, 10), *[(0, 1)] * 7), busy(*[(0, 10)] * 8)
    auto = AutoBudget()
    assert auto.budget == 0.5
    assert auto.observe(tail) < 0.5
    for _ in range(50):
        auto.observe(tail)
    assert auto.budget == legs.LEAST
    for _ in range(50):
        auto.observe(full)
    assert auto.budget == legs.MOST
    assert auto.observe([]) == legs.MOST


@given(st.floats(0.01, 1.0), st.integers(1, 40000))
def test_a_leg_is_its_share_and_never_nothing(budget: float, longest: int) -> None:
    tokens = legs.leg_tokens(budget, longest)
    if budget >= 1:
        assert tokens is None
    else:
        assert tokens is not None
        assert 1 <= tokens <= longest
        assert tokens - 1 < budget * longest


def seen(lengths: list[int], prompt: int = 10) -> LengthSample:
    sample = LengthSample()
    sample.observe(lengths, [prompt] * len(lengths))
    return sample


@given(
    st.lists(st.integers(1, 2000), min_size=32, max_size=200),
    st.integers(1, 64),
    st.integers(1, 16),
    st.none() | st.integers(1, 10**7),
    st.integers(1, 8),
)
def test_over_sampling_keeps_within_its_bounds(
    lengths: list[int], target: int, size: int, capacity: int | None, cap: int
) -> None:
    sample = seen(lengths)
    groups = oversampling.groups_at_once(sample, target, size, capacity, cap)
    assert target <= groups <= oversampling.MOST * target
    if groups > target:
        assert groups * sample.percentile(0.99) <= cap * target * sample.mean
        if capacity is not None:
            assert groups * size * (sample.mean_prompt + sample.mean / 2) <= capacity


def test_over_sampling_before_anything_was_measured_and_with_a_heavy_tail() -> None:
    assert oversampling.groups_at_once(seen([]), 8, 4, None, 5) == 16
    assert oversampling.groups_at_once(seen([100] * 99), 8, 4, None, 5) == 24
    assert oversampling.groups_at_once(seen([100] * 60 + [4000] * 4), 8, 4, None, 5) == 8
    assert oversampling.groups_at_once(seen([100] * 99), 8, 4, 30 * 10 * 60, 5) == 24
    assert oversampling.groups_at_once(seen([100] * 99), 8, 4, 10 * 4 * 60, 5) == 10


@dataclass
class Sample:
    index: int
    group_index: int
    reward: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def get_reward_value(self, args: Any) -> float:
        assert self.reward is not None
        return self.reward


ARGS = Namespace(advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=True, reward_key=None)


def host_rewards(raw: list[float], size: int) -> list[float]:
    """As the hosts normalise whole groups."""
    rows = torch.tensor(raw).reshape(-1, size)
    rows = rows - rows.mean(dim=-1, keepdim=True)
    return list((rows / (rows.std(dim=-1, keepdim=True) + 1e-6)).flatten().tolist())


@given(st.lists(st.lists(st.integers(0, 3).map(float), min_size=4, max_size=4), min_size=1, max_size=5))
def test_whole_groups_are_normalised_as_the_host_does(groups: list[list[float]]) -> None:
    batch = [Sample(0, index, reward) for index, group in enumerate(groups) for reward in group]
    raw, ours = rewards.post_process(ARGS, batch)
    assert raw == [reward for group in groups for reward in group]
    assert ours == pytest.approx(host_rewards(raw, 4), abs=1e-4)


def test_a_group_trained_in_two_parts_is_normalised_as_one() -> None:
    values = [0.0, 1.0, 1.0, 3.0]
    members = [
        Trajectory(Sample(number, 7, value), TrajectoryState.FINISHED, rewarded=True)
        for number, value in enumerate(values)
    ]
    late = members[3]
    late.payload.reward, late.state, late.rewarded = None, TrajectoryState.PARTIAL, False
    now, rest = samples.split(Group(7, members), 2)
    assert [member.payload.index for member in now.members] == [0, 1]
    assert rest.earlier == 2
    first = rewards.post_process(ARGS, [member.payload for member in now.members])[1]
    assert first == pytest.approx([-1.1547, 0.57735], abs=1e-3), "over the three rewards that were known"
    late.payload.reward = 3.0
    second = rewards.post_process(ARGS, [member.payload for member in rest.members])[1]
    assert second == pytest.approx(host_rewards(values, 4)[2:], abs=1e-4)
    assert len(samples.siblings_of(rest.members[0].payload)) == 2


def test_other_estimators_keep_raw_rewards() -> None:
    args = Namespace(**{**vars(ARGS), "advantage_estimator": "ppo"})
    assert rewards.post_process(args, [Sample(0, 0, 2.0)]) == ([2.0], [2.0])


class Status(str):
    @property
    def value(self) -> str:
        return str(self)


async def ask(
    tokens: int | None, priority: int | None, generated: int = 0, finishes: bool = False
) -> tuple[dict[str, Any], Any]:
    """One call of a host's ``generate`` through the patch; the engine generates all that is asked for."""
    sent: list[dict[str, Any]] = []
    module = ModuleType("host")

    async def post(url: str, payload: dict[str, Any], headers: Any = None) -> None:
        sent.append(payload)

    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        await module.post("url", {"sampling_params": sampling_params}, headers=None)  # type: ignore[attr-defined]
        sample.response_length += sent[0]["sampling_params"]["max_new_tokens"] - finishes
        sample.status = Status("completed" if finishes else "truncated")
        return sample

    module.post, module.generate = post, generate  # type: ignore[attr-defined]
    requests.apply(module, Patcher())
    sample = SimpleNamespace(metadata={}, response_length=generated, status=Status("pending"))
    samples.ask(sample, samples.Request(tokens, priority))
    parameters = {"max_new_tokens": 100}
    sample = await module.generate(None, sample, parameters)
    assert parameters == {"max_new_tokens": 100}, "the host's own parameters are not changed"
    return sent[0], sample


async def test_a_request_asks_for_what_is_left_of_the_response_and_of_its_leg() -> None:
    payload, sample = await ask(None, None)
    assert (payload["sampling_params"]["max_new_tokens"], sample.status) == (100, "truncated")
    assert "priority" not in payload
    payload, sample = await ask(None, 3, generated=60)
    assert (payload["sampling_params"]["max_new_tokens"], payload["priority"], sample.status) == (40, 3, "truncated")
    payload, sample = await ask(30, None, generated=60)
    assert (payload["sampling_params"]["max_new_tokens"], sample.status) == (30, "aborted"), "it goes on later"
    payload, sample = await ask(40, None, generated=60)
    assert sample.status == "truncated", "the leg was all that was left"
    payload, sample = await ask(30, None, generated=60, finishes=True)
    assert sample.status == "completed"


def test_a_request_leaves_no_trace_on_a_sample() -> None:
    sample = SimpleNamespace(metadata={"mine": 1})
    samples.ask(sample, samples.Request())
    assert sample.metadata == {"mine": 1}
    samples.ask(sample, samples.Request(5, 1))
    assert samples.request_of(sample) == samples.Request(5, 1)
    samples.ask(sample, samples.Request())
    assert samples.request_of(sample) == samples.Request()


def test_prompts_with_short_histories_come_first_and_a_longer_response_counts_by_its_budget() -> None:
    def group(index: int, expected: float | None, *lengths: int) -> Group:
        members = [
            Trajectory(None, TrajectoryState.PARTIAL if length else TrajectoryState.PENDING, (), length)
            for length in lengths
        ]
        return Group(index, members, expected=expected)

    known, new, short, beyond = group(0, 60, 0, 0), group(1, None, 0, 0), group(2, 20, 0, 0), group(3, 20, 90, 90)
    order = sorted([known, new, short, beyond], key=lambda one: priority(one, 100))
    assert [one.index for one in order] == [3, 2, 0, 1]


def test_history_keeps_the_newest_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT", 2)
    seen_before = history.LengthHistory()
    assert seen_before.expected("a") is None
    seen_before.observe("a", 100)
    seen_before.observe("a", 50)
    assert seen_before.expected("a") == 75
    seen_before.observe([{"role": "user", "content": "b"}], 7)
    seen_before.observe("c", 1)
    assert seen_before.expected("a") is None
    assert seen_before.expected([{"role": "user", "content": "b"}]) == 7
