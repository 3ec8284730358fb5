"""One round over a fake engine."""

from __future__ import annotations

import asyncio
import time

import pytest
from fake_engine import FakeEngine, FakeSource, finished, partial, play, prompt

from april.core import Group
from april.errors import AprilError
from april.ports import Verdict
from april.staleness import AtCap, StalenessPolicy


def lengths(*needs: int) -> FakeSource:
    """One-member groups of these lengths, and no more."""
    return FakeSource(lambda index: prompt(index, [needs[index]]) if index < len(needs) else None)


def indices(groups: list[Group]) -> list[int]:
    return sorted(group.index for group in groups)


async def test_stops_at_the_target_and_recycles_what_is_unfinished() -> None:
    engine, source = FakeEngine(), lengths(3, 50, 4, 60)
    result = await play(engine, source, target=2, over=4)
    assert indices(result.trained) == [0, 2]
    assert indices(result.recycled) == [1, 3]
    assert set(source.buffer) == {1, 3}
    assert engine.aborts >= 1
    assert result.wasted_tokens == 0
    assert result.generated_tokens == result.trained_tokens + result.recycled_tokens
    assert all(leg.policy_version == 1 for group in result.recycled for leg in group.legs)


async def test_nothing_is_aborted_when_nothing_runs() -> None:
    engine = FakeEngine()
    await play(engine, lengths(3, 3), target=2, over=2)
    assert engine.aborts == 0


async def test_surplus_finished_groups_go_to_the_buffer_and_are_trained_first() -> None:
    engine, source = FakeEngine(), lengths(5, 5, 5, 5, 9, 9, 9, 9)
    first = await play(engine, source, target=2, over=4)
    assert indices(first.trained) == [0, 1]
    assert indices(first.surplus) == [2, 3]
    engine.rollout_id, engine.version = 1, 2
    second = await play(engine, source, target=3, over=4)
    assert second.trained[0].index == 2
    assert second.trained[1].index == 3
    assert engine.order.count(2) == 1, "a finished group is generated once"
    assert second.max_lag == 1


async def test_a_resumed_group_goes_on_where_it_stopped_with_a_leg_for_each_version() -> None:
    engine, source = FakeEngine(), lengths(2, 30)
    await play(engine, source, target=1, over=2)
    held = source.buffer[1].tokens
    assert 0 < held < 30
    engine.rollout_id, engine.version = 1, 2
    result = await play(engine, source, target=1, over=1)
    [member] = result.trained[0].members
    assert member.payload.tokens == list(range(30))
    assert [(leg.policy_version, leg.start, leg.length) for leg in member.legs] == [(1, 0, held), (2, held, 30 - held)]
    assert result.resumed == 1
    assert result.off_policy_tokens == held


async def test_dispatch_order_is_oldest_version_then_shortest_rest_then_new() -> None:
    engine, source = FakeEngine(max_len=100), lengths(90, 90)
    source.next = 0
    source.put([partial(10, 4, 5, [90]), partial(11, 3, 5, [90]), partial(12, 4, 50, [90])])
    engine.version = 5
    await play(engine, source, target=1, over=5)
    assert engine.order == [11, 12, 10, 0, 1]


async def test_a_filter_drop_is_refilled_exactly() -> None:
    engine = FakeEngine()
    source = FakeSource(lambda index: prompt(index, [2 + index]))
    result = await play(engine, source, 2, 3, judge=lambda group, remaining: Verdict(group.index >= 2, "low"))
    assert indices(result.trained) == [2, 3]
    assert [(drop.group.index, drop.reason) for drop in result.dropped] == [(0, "low"), (1, "low")]
    assert source.asked[0] == 3
    assert sum(source.asked) == 5, "one more for each drop"
    assert sorted(source.buffer) == [4]
    assert result.wasted_tokens == sum(drop.group.tokens for drop in result.dropped)


async def test_nothing_is_taken_once_the_round_is_complete() -> None:
    source = FakeSource(lambda index: prompt(index, [2]))
    result = await play(FakeEngine(), source, 1, 2, judge=lambda group, remaining: Verdict(group.index == 1))
    assert indices(result.trained) == [1]
    assert source.asked == [2]


async def test_a_filter_that_rejects_everything_fails_clearly() -> None:
    source = FakeSource(lambda index: prompt(index, [1]))
    with pytest.raises(AprilError, match=r"11 groups in a row were rejected, the last as zero_std"):
        await play(FakeEngine(), source, 2, 4, judge=lambda *_: Verdict(False, "zero_std"), max_rejected=10)


async def test_a_reward_of_none_is_never_trained_and_fails_clearly_in_the_end() -> None:
    engine = FakeEngine()
    engine.rewarded = lambda index: index != 1
    result = await play(engine, lengths(2, 2, 2), 2, 2)
    assert indices(result.trained) == [0, 2]
    assert [(drop.group.index, drop.reason) for drop in result.dropped] == [(1, "no_reward")]
    engine.rewarded = lambda index: False
    with pytest.raises(AprilError, match=r"4 groups in a row ended without a reward"):
        await play(engine, FakeSource(lambda index: prompt(index, [2])), 2, 3)


async def test_any_unfinished_member_keeps_its_group_from_training() -> None:
    engine = FakeEngine()
    source = FakeSource(lambda index: prompt(index, [2, 50]) if index == 0 else prompt(index, [4, 4]))
    result = await play(engine, source, 1, 2)
    assert indices(result.trained) == [1]
    [recycled] = result.recycled
    assert [member.state.value for member in recycled.members] == ["finished", "partial"]


async def test_too_few_prompts_is_an_error_and_no_hang() -> None:
    source = lengths(2, 2)
    with pytest.raises(AprilError, match=r"2 of 3 groups can still finish and the data source has no more"):
        await asyncio.wait_for(play(FakeEngine(), source, 3, 3), 5)
    assert set(source.buffer) == {0, 1}, "what was taken is given back"


async def test_no_prompts_at_all() -> None:
    with pytest.raises(AprilError, match="0 of 1 groups"):
        await play(FakeEngine(), lengths(), 1, 1)


async def test_an_error_of_the_host_goes_through_and_loses_nothing() -> None:
    engine, source = FakeEngine(), lengths(3, 6, 50)
    engine.errors[1] = RuntimeError("judge crashed")
    with pytest.raises(RuntimeError, match="judge crashed"):
        await play(engine, source, 2, 3)
    assert set(source.buffer) == {0, 1, 2}


async def test_a_group_aborted_on_the_way_goes_on() -> None:
    engine = FakeEngine()
    engine.hiccups[0] = 2
    result = await play(engine, lengths(5), 1, 1)
    assert indices(result.trained) == [0]
    assert engine.order == [0, 0, 0]


async def test_a_group_that_only_ever_comes_back_aborted_fails_clearly() -> None:
    engine, source = FakeEngine(), lengths(5)
    engine.hiccups[0] = 100
    with pytest.raises(AprilError, match=r"group 0 came back aborted 4 times without a new token"):
        await play(engine, source, 1, 1)
    assert set(source.buffer) == {0}


@pytest.mark.parametrize("judge_s", [600.0])
async def test_a_slow_judge_does_not_hold_up_the_drain(judge_s: float) -> None:
    """Case 4: a judge of 600 s, a deadline of 0.4 s."""
    engine, source = FakeEngine(), lengths(3, 2, 200)
    engine.judge_s[1] = judge_s
    start = time.monotonic()
    result = await play(engine, source, 1, 3, drain_deadline=0.4)
    assert time.monotonic() - start < 1.0
    assert result.drain_seconds <= 0.5
    assert asyncio.all_tasks() == {asyncio.current_task()}, "what was late is cancelled, not left behind"
    assert len(engine.order) == 3, "nothing is sent while draining"
    unjudged = source.buffer[1]
    assert unjudged.has_ended
    assert not unjudged.finished
    assert unjudged.tokens == 2
    assert "did not end within the drain deadline" in result.drain_errors[0]


async def test_an_engine_that_does_not_hear_the_abort_is_tolerated() -> None:
    """Case 13: the group of a dead engine is recycled with what it had."""
    engine, source = FakeEngine(max_len=10**9), lengths(3, 10**9, 50)
    engine.deaf.add(1)
    result = await play(engine, source, 1, 3, drain_deadline=0.3)
    assert indices(result.recycled) == [1, 2]
    assert source.buffer[1].tokens == len(source.buffer[1].members[0].payload.tokens)
    assert engine.aborts > 0


async def test_an_error_while_draining_recycles_the_group() -> None:
    engine, source = FakeEngine(), lengths(1, 500)
    submit = engine.submit

    async def breaks(group: Group) -> Group:
        ended = await submit(group)
        if engine.aborting:
            raise ConnectionError("engine is gone")
        return ended

    engine.submit = breaks  # type: ignore[method-assign]
    result = await play(engine, source, 1, 2)
    assert result.drain_errors == ["group 1: ConnectionError: engine is gone"]
    assert source.buffer[1].tokens > 0


async def test_without_partial_rollout_what_is_unfinished_starts_again() -> None:
    """Case 3: versions never mix when the flag is off."""
    engine, source = FakeEngine(), lengths(3, 3, 50)
    result = await play(engine, source, 1, 3, keep_partials=False)
    assert sorted(engine.restarted) == [1, 2]
    assert all(group.fresh for group in source.buffer.values())
    assert result.wasted_tokens == result.generated_tokens - result.trained_tokens


class TestCap:
    """Groups at the staleness cap."""

    async def test_finish_waits_for_a_group_at_the_cap(self) -> None:
        engine = FakeEngine()
        source = FakeSource(lambda index: prompt(index, [1]))
        source.put([partial(100, 1, 5, [200])])
        engine.version = 6
        result = await play(engine, source, 1, 4, staleness=StalenessPolicy(5, AtCap.FINISH))
        assert indices(result.trained) == [100], "it may be trained now for the last time"
        assert result.max_lag == 5
        assert indices(result.surplus) == [0, 1, 2]
        assert engine.restarted == []

    async def test_finish_restarts_what_cannot_be_trained_in_time(self) -> None:
        engine = FakeEngine()
        source = FakeSource(lambda index: prompt(index, [1]))
        source.put([finished(100, 1), finished(101, 1), finished(102, 1)])
        engine.version = 6
        staleness = StalenessPolicy(5, AtCap.FINISH)
        result = await play(engine, source, 2, 3, staleness=staleness)
        assert indices(result.trained) == [100, 101]
        engine.version = 7
        result = await play(engine, source, 1, 2, staleness=staleness)
        assert engine.restarted == [102]
        assert result.expired == 1
        assert result.wasted_tokens == 2
        assert result.max_lag == 0

    async def test_restart(self) -> None:
        engine = FakeEngine()
        source = FakeSource(lambda index: prompt(index, [400]))
        source.put([partial(100, 1, 5, [20]), partial(101, 2, 5, [20])])
        engine.version = 7
        result = await play(engine, source, 2, 3, staleness=StalenessPolicy(5, AtCap.RESTART))
        assert engine.restarted == [100]
        assert result.wasted_tokens == 5
        assert {group.index: group.lag(7) for group in result.trained} == {100: 0, 101: 5}

    async def test_mask_throws_nothing_away(self) -> None:
        engine = FakeEngine()
        source = FakeSource(lambda index: prompt(index, [400]))
        source.put([partial(100, 1, 5, [20])])
        engine.version = 50
        result = await play(engine, source, 1, 2, staleness=StalenessPolicy(5, AtCap.MASK))
        assert indices(result.trained) == [100]
        assert engine.restarted == []

    async def test_places_are_held_for_groups_that_must_finish(self) -> None:
        engine = FakeEngine()
        source = FakeSource(lambda index: prompt(index, [1]))
        source.put([partial(100, 1, 5, [60]), partial(101, 1, 5, [80])])
        engine.version = 6
        result = await play(engine, source, 3, 6, staleness=StalenessPolicy(5, AtCap.FINISH))
        assert indices(result.trained) == [0, 100, 101]
