"""Settings, versions and states: april.config, april.staleness, april.core."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import pytest
from fake_engine import finished, partial, prompt

from april.config import add_arguments, from_args
from april.core import Leg, Trajectory, TrajectoryState, legs_fault, priority
from april.errors import UsageError
from april.staleness import Action, AtCap, StalenessPolicy, VersionClock, capped_mask, parse_version

HOST = {
    "rollout_batch_size": 4,
    "over_sampling_batch_size": None,
    "n_samples_per_prompt": 2,
    "rollout_max_response_len": 16,
}


def test_flags_and_their_defaults() -> None:
    parser = ArgumentParser()
    assert add_arguments(parser) is parser
    assert vars(parser.parse_args([])) == {
        "april_staleness_cap": 5,
        "april_at_cap": "finish",
        "april_drain_deadline": 120.0,
        "april_buffer_dir": None,
        "april_buffer_max_gb": None,
        "april_stop": "groups",
        "april_min_group_size": 0,
        "april_leg_budget": 1.0,
        "april_over_sampling": "fixed",
        "april_interrupt": "abort",
        "april_correction": "none",
        "april_correction_clip": [0.0, 2.0],
        "april_correction_decay": 1.0,
        "april_correction_reject": None,
        "april_correction_numerics": False,
    }
    args = parser.parse_args(["--april-staleness-cap", "2", "--april-at-cap", "mask", "--april-drain-deadline", "7.5"])
    config = from_args(Namespace(**HOST, **vars(args), partial_rollout=True))
    assert (config.staleness_cap, config.at_cap, config.drain_deadline) == (2, AtCap.MASK, 7.5)
    assert (config.target, config.over_sampling, config.keep_partials) == (4, 4, True)


def test_our_flags_may_be_missing() -> None:
    config = from_args(Namespace(**HOST))
    assert (config.staleness_cap, config.at_cap, config.drain_deadline) == (5, AtCap.FINISH, 120.0)
    assert not config.keep_partials


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout_batch_size": 0}, "--rollout-batch-size is 0: it must be at least 1"),
        (
            {"over_sampling_batch_size": 3},
            r"--over-sampling-batch-size is 3: it must be at least --rollout-batch-size \(4\)",
        ),
        ({"april_staleness_cap": -2}, "--april-staleness-cap is -2: it must be 0 or more policy versions"),
        (
            {"april_staleness_cap": 0, "april_async": True},
            "--april-staleness-cap is 0: with --async it must be at least 1",
        ),
        ({"april_at_cap": "wait"}, "--april-at-cap is wait: it must be one of finish, restart, mask"),
        ({"april_drain_deadline": 0}, "--april-drain-deadline is 0.0: it must be a positive number of seconds"),
        ({"april_drain_deadline": "nan"}, "--april-drain-deadline is nan"),
        ({"april_buffer_max_gb": 0}, "--april-buffer-max-gb is 0.0: it must be a positive number of gigabytes"),
        ({"april_min_group_size": 3}, r"--april-min-group-size is 3: it must be at most --n-samples-per-prompt \(2\)"),
        ({"april_leg_budget": 0}, "--april-leg-budget is 0.0: it must be auto, or above 0 and at most 1"),
        ({"april_leg_budget": "auto"}, "--april-leg-budget is auto: it must be 1 without --partial-rollout"),
        ({"april_stop": "samples", "group_rm": True}, "--group-rm needs whole groups; use --april-stop groups"),
        ({"april_stop": "samples"}, "--custom-reward-post-process-path is None, it must be april.rewards.post_process"),
    ],
)
def test_a_wrong_value_names_flag_value_and_what_would_be_right(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_args(Namespace(**{**HOST, **changes}))


def test_legal_and_illegal_moves() -> None:
    member = Trajectory(None)
    for state in ("running", "partial", "running", "finished"):
        member.move(TrajectoryState(state))
    with pytest.raises(AssertionError, match="illegal move finished -> running"):
        member.move(TrajectoryState.RUNNING)
    with pytest.raises(AssertionError, match="illegal move pending -> finished"):
        Trajectory(None).move(TrajectoryState.FINISHED)


@pytest.mark.parametrize(
    ("legs", "length", "fault"),
    [
        ([], 0, None),
        ([Leg(1, 0, 3, 0), Leg(2, 3, 1, 1)], 4, None),
        ([Leg(1, 0, 3, 0)], 4, "the legs cover 3 of 4 tokens"),
        ([Leg(1, 0, 3, 0), Leg(2, 4, 1, 1)], 5, "a leg starts at 4, the one before ends at 3"),
        ([Leg(1, 0, 0, 0)], 0, "a leg at 0 has 0 tokens"),
    ],
)
def test_legs_tile_a_response(legs: list[Leg], length: int, fault: str | None) -> None:
    assert legs_fault(legs, length) == fault


def test_admission_order() -> None:
    groups = [prompt(0, [9]), partial(1, 3, 2, [9]), partial(2, 2, 2, [9]), partial(3, 3, 5, [9]), finished(4, 3)]
    groups.append(finished(5, 2))
    assert [group.index for group in sorted(groups, key=lambda group: priority(group, 10))] == [5, 4, 2, 3, 1, 0]


@pytest.mark.parametrize(
    ("at_cap", "version", "action"),
    [
        (AtCap.FINISH, 5, Action.RUN),
        (AtCap.FINISH, 6, Action.MUST_FINISH),
        (AtCap.FINISH, 7, Action.RESTART),
        (AtCap.RESTART, 6, Action.RUN),
        (AtCap.RESTART, 7, Action.RESTART),
        (AtCap.MASK, 70, Action.RUN),
    ],
)
def test_what_happens_at_a_cap_of_five(at_cap: AtCap, version: int, action: Action) -> None:
    assert StalenessPolicy(5, at_cap).action(partial(0, 1, 3, [9]), version) is action


def test_the_oldest_member_counts() -> None:
    group = partial(0, 4, 3, [9, 9])
    group.members[1].legs = (Leg(1, 0, 2, 0), Leg(4, 2, 1, 3))
    assert group.lag(6) == 5


def test_a_mask_beyond_the_cap() -> None:
    legs = [Leg(1, 0, 2, 0), Leg(5, 2, 3, 4)]
    assert capped_mask(None, legs, policy_version=7, cap=5) == [0, 0, 1, 1, 1]
    assert capped_mask([0] * 5, legs, policy_version=7, cap=5) == [0] * 5, "case 8: a rejected sequence stays rejected"
    assert capped_mask([1, 1, 0, 1, 1], legs, policy_version=6, cap=5) == [1, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("raw", "version"), [("default", 0), ("3", 3), (4, 4), ("000012", 12), ("a1b2", None), (None, None)]
)
def test_engine_versions(raw: object, version: int | None) -> None:
    assert parse_version(raw) == version


def test_versions_go_on_after_a_restart_of_the_run() -> None:
    """Case 22: the engines count from 1 again, partials of version 37 are waiting."""
    clock = VersionClock()
    assert [clock.observe(raw) for raw in (1, 2, 37)] == [1, 2, 37]
    clock = VersionClock.restore(clock.to_dict())
    assert [clock.observe(raw) for raw in (1, 1, 2)] == [38, 38, 39]
    assert clock.observe(None) == 39
    assert clock.of(1) == 38, "an engine that is behind says so"


def test_an_asynchronous_loop_takes_one_version_of_the_cap() -> None:
    assert from_args(Namespace(**HOST, april_async=True)).staleness_cap == 4
    assert from_args(Namespace(**HOST)).staleness_cap == 5
