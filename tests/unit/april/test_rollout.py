"""The rollout function over a fake host and a fake server."""

from __future__ import annotations

import asyncio
import copy
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_data import Sample, Status
from fake_host import GenerateState, World, arguments, install, source_for
from fake_sglang import FakeSglang

from april import samples
from april.errors import AprilError, UsageError
from april.rollout import generate_rollout, generate_rollout_sync
from april.telemetry.events import read

LONG = 1000


def by_prompt(*lengths: int) -> Callable[[list[int]], int]:
    return lambda ids: lengths[ids[1] % len(lengths)]


def intact(sample: Any) -> None:
    """The server's tokens in order, with everything of one length."""
    length = sample.response_length
    assert sample.tokens == [1, int(sample.prompt), *(1000 + 2 + i for i in range(length))]
    assert len(sample.rollout_log_probs) == len(sample.response) == length
    samples.check(sample)


def buffered(source: Any) -> list[Any]:
    return [member.payload for group in source.buffer.snapshot() for member in group.members]


def test_three_rounds_resume_and_lose_nothing(world: World, tmp_path: Path) -> None:
    args = arguments()
    source = source_for(args)
    seen: list[int] = []
    for rollout_id in range(3):
        world.server.weight_version = str(rollout_id + 1)
        output = generate_rollout(args, rollout_id, source)
        assert len(output.samples) == 2
        for sample in samples.leaves(output.samples):
            intact(sample)
            assert sample.reward == sample.response_length
            assert sum(leg.length for leg in samples.legs_of(sample)) == sample.response_length
        seen += [group[0].group_index for group in output.samples]
        for sample in buffered(source):
            intact(sample)
    held = [sample.group_index for sample in buffered(source)]
    assert sorted({*seen, *held}) == list(range(source.sample_group_index))
    assert len(seen) == len(set(seen))
    assert not set(seen) & set(held)
    events = read(tmp_path / "events.jsonl", "round")
    assert [event["rollout_id"] for event in events] == [0, 1, 2]
    assert events[1]["policy_version"] == 2
    assert events[1]["partials_resumed"] > 0
    assert all(event["wasted_tokens"] == 0 and event["load_after"] == 0 for event in events)
    before = 0
    for event in events:
        assert before + event["generated_tokens"] == event["trained_tokens"] + event["recycled_tokens"]
        before = event["recycled_tokens"]
    assert {span["outcome"] for event in events for span in event["spans"]} <= {"finished", "partial", "surplus"}
    assert all(span["start"] <= span["end"] for event in events for span in event["spans"])
    assert output.metrics["april/off_policy_share"] > 0


def test_a_leg_asks_for_what_is_left_only(world: World) -> None:
    """Case 1: ``max_new_tokens`` shrinks by what was generated, and the payload carries the stored ids."""
    args = arguments(rollout_batch_size=1, over_sampling_batch_size=2, n_samples_per_prompt=1, prompts=2)
    source = source_for(args)
    generate_rollout(args, 0, source)
    [held] = buffered(source)
    tokens, length = list(held.tokens), held.response_length
    assert held.metadata["start_rollout_id"] == 0
    world.server.requests.clear()
    args.over_sampling_batch_size = 1
    [[sample]] = generate_rollout(args, 1, source).samples
    [request] = world.server.requests
    assert request["input_ids"] == tokens
    assert request["sampling_params"]["max_new_tokens"] == 64 - length
    assert [(leg.start, leg.length) for leg in samples.legs_of(sample)] == [(0, length), (length, 40 - length)]


def test_without_tokens_left_it_is_truncated_rewarded_and_not_sent(world: World) -> None:
    """Case 1."""
    args = arguments(rollout_batch_size=1, over_sampling_batch_size=2, n_samples_per_prompt=1, prompts=2)
    source = source_for(args)
    generate_rollout(args, 0, source)
    [held] = buffered(source)
    world.server.requests.clear()
    args.rollout_max_response_len = held.response_length
    args.over_sampling_batch_size = 1
    [[sample]] = generate_rollout(args, 1, source).samples
    assert world.server.requests == []
    assert sample.status is Status.TRUNCATED
    assert sample.reward == sample.response_length


def siblings(world: World, **changes: Any) -> tuple[Any, Any, Any]:
    """A recycled group with one finished member and one partial; returns args, source and the members' state."""
    args = arguments(rollout_batch_size=1, over_sampling_batch_size=2, prompts=2, **changes)
    counts: dict[int, int] = {}

    def length(ids: list[int]) -> int:
        # Group 0 ends soon; in group 1 the first request does, the other one is long.
        counts[ids[1]] = counts.get(ids[1], 0) + 1
        return 6 if ids[1] == 0 else (2 if counts[ids[1]] == 1 else 40)

    world.server.length = length
    source = source_for(args)
    generate_rollout(args, 0, source)
    ended, partial = buffered(source)
    assert (ended.status, partial.status) == (Status.COMPLETED, Status.ABORTED)
    args.over_sampling_batch_size = 1
    return args, source, (ended, partial)


def test_a_finished_sibling_is_untouched(world: World) -> None:
    """Case 2: the host clears the loss mask of everything resumed; a finished sibling keeps tokens, mask and reward."""
    args, source, (ended, partial) = siblings(world, mask_offpolicy_in_partial_rollout=True)
    ended.loss_mask = [1, 0]
    source.buffer.restore([samples.group_of([ended, partial])])
    before, resumed = copy.deepcopy(ended), partial.response_length
    world.host.judged.clear()
    [[first, second]] = generate_rollout(args, 1, source).samples
    assert first.to_dict() == before.to_dict()
    assert second.loss_mask == [0] * resumed + [1] * (40 - resumed)
    assert world.host.judged == [second], "a reward is asked for once"


def test_a_group_reward_sees_all_members_and_reaches_them(world: World) -> None:
    args, source, (ended, _) = siblings(world, group_rm=True)
    assert ended.reward is None
    [[first, second]] = generate_rollout(args, 1, source).samples
    assert (first.reward, second.reward) == (2.0, 40.0)


def test_a_judge_that_was_cut_off_is_asked_again(world: World) -> None:
    """Cases 4 and 6: what ended without its reward is neither trained nor generated again."""

    async def judge(args: Any, sample: Any) -> float:
        if world.bindings.GenerateState(args).aborted or sample.group_index == 1:
            await asyncio.sleep(LONG)
        return 1.0

    args = arguments(rollout_batch_size=1, over_sampling_batch_size=2, n_samples_per_prompt=1, april_drain_deadline=0.3)
    world.server.length = by_prompt(9, 3)
    world.host.judge = judge
    source = source_for(args)
    output = generate_rollout(args, 0, source)
    [held] = buffered(source)
    assert (held.group_index, held.status, held.reward) == (1, Status.COMPLETED, None)
    assert output.metrics["april/drain_errors"] == 1
    world.host.judge = world.host._judge
    world.server.requests.clear()
    args.over_sampling_batch_size = 1
    [[sample]] = generate_rollout(args, 1, source).samples
    assert (sample.group_index, sample.reward) == (1, 3.0)
    assert world.server.requests == []


def test_a_reward_of_none_never_reaches_training(world: World) -> None:
    """Case 6."""

    async def judge(args: Any, sample: Any) -> float | None:
        return None if sample.group_index == 0 else 0.5

    world.host.judge = judge
    output = generate_rollout(arguments(), 0, source_for(arguments()))
    assert all(sample.reward == 0.5 for sample in samples.leaves(output.samples))
    assert output.metrics["april/groups_dropped"] == 1


def test_the_second_arguments_take_effect(world: World) -> None:
    """Case 10: the host's state is a singleton that keeps the first."""
    first = arguments()
    source = source_for(first)
    generate_rollout(first, 0, source)
    generate_rollout(arguments(rollout_temperature=0.25), 1, source)
    assert world.server.requests[-1]["sampling_params"]["temperature"] == 0.25
    first.rollout_temperature = 0.75
    generate_rollout(first, 2, source)
    state = GenerateState(first)
    generate_rollout(first, 3, source)
    assert world.server.requests[-1]["sampling_params"]["temperature"] == 0.75
    assert GenerateState(first) is state, "it is made anew only where something changed"


def test_evaluation_is_the_hosts_own(world: World) -> None:
    args = arguments()
    for function in (generate_rollout, generate_rollout_sync):
        assert function(args, 7, None, evaluation=True) == "evaluated"
    assert [rollout_id for rollout_id, _ in world.host.evaluations] == [7, 7]


def test_hooks_of_the_host(world: World) -> None:
    """Dynamic filter, sample filter, all samples, recomputed log probabilities, metrics."""
    calls: dict[str, Any] = {}
    world.hooks.keep = lambda args, group: types.SimpleNamespace(keep=group[0].group_index != 0, reason="first")
    world.hooks.mark = lambda args, data: calls.update(filtered=[group[0].group_index for group in data])
    world.hooks.all = lambda args, groups, source: calls.update(all=[group[0].group_index for group in groups])
    args = arguments(
        dynamic_sampling_filter_path="keep",
        rollout_sample_filter_path="mark",
        rollout_all_samples_process_path="all",
    )
    output = generate_rollout(args, 0, source_for(args))
    trained = [group[0].group_index for group in output.samples]
    assert trained == sorted(trained)
    assert 0 not in trained
    assert calls == {"filtered": trained, "all": [0, *trained]}
    assert world.host.recomputed == list(samples.leaves(output.samples))
    assert output.metrics["rollout/dynamic_filter/drop_first"] == 1


def test_tokens_beyond_the_cap_get_no_weight(world: World) -> None:
    args = arguments(
        rollout_batch_size=1, over_sampling_batch_size=2, n_samples_per_prompt=1, april_at_cap="mask", prompts=2
    )
    source = source_for(args)
    generate_rollout(args, 0, source)
    held = buffered(source)[0].response_length
    args.over_sampling_batch_size, world.server.weight_version = 1, "9"
    [[sample]] = generate_rollout(args, 1, source).samples
    assert sample.loss_mask == [0] * held + [1] * (40 - held)


def test_a_response_without_text_is_resumed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that goes by the text would send the prompt alone, and append to what was there."""
    world = install(monkeypatch, FakeSglang(by_prompt(3, 40)), resumes_by_text=True)
    world.server.text = ""
    seen: list[str] = []
    generate = world.host.generate

    async def spy(args: Any, sample: Any, params: Any) -> Any:
        seen.append(sample.response)
        return await generate(args, sample, params)

    args = arguments(rollout_batch_size=1, over_sampling_batch_size=2, n_samples_per_prompt=1, custom=spy)
    source = source_for(args)
    generate_rollout(args, 0, source)
    args.over_sampling_batch_size = 1
    [[sample]] = generate_rollout(args, 1, source).samples
    assert seen == ["", "", samples.NO_TEXT]
    assert sample.response == ""
    assert sample.response_length == 40


def test_a_host_that_loses_tokens_is_found_out(world: World) -> None:
    async def forgets(args: Any, sample: Any, params: Any) -> Any:
        if sample.response_length:
            sample.tokens, sample.response_length, sample.rollout_log_probs = [9, 1], 0, None
        return await world.host.generate(args, sample, params)

    args = arguments(rollout_batch_size=1, over_sampling_batch_size=2, n_samples_per_prompt=1, custom=forgets)
    source = source_for(args)
    generate_rollout(args, 0, source)
    args.over_sampling_batch_size = 1
    with pytest.raises(AprilError, match="sample 1: a resumed response lost or changed tokens"):
        generate_rollout(args, 1, source)


def test_sync_is_the_hosts_own_and_tells_of_its_round(world: World, tmp_path: Path) -> None:
    args = arguments()
    source = world.bindings.RolloutDataSource(args)
    output = generate_rollout_sync(args, 3, source)
    assert output.metrics == {"host": 1}
    assert "get_samples" not in vars(source)
    [event] = read(tmp_path / "events.jsonl", "round")
    assert (event["rollout_id"], event["policy_version"], event["partials_resumed"]) == (3, 1, 0)
    assert event["trained_tokens"] == event["generated_tokens"] == sum(event["response_lengths"]) == 2 * (3 + 40)
    assert len(event["spans"]) == 4


def test_a_wrong_setting_names_its_flag(world: World) -> None:
    with pytest.raises(UsageError, match="--april-staleness-cap is -1: it must be 0 or more policy versions"):
        generate_rollout(arguments(april_staleness_cap=-1), 0, None)


def test_a_failed_sample_counts_when_it_has_a_reward(world: World) -> None:
    """FAILED is the host's soft failure: with a reward it is trained, as upstream; the host is never sent one again."""

    async def fails(args: Any, sample: Any, params: Any) -> Any:
        sample = await world.host.generate(args, sample, params)
        if sample.status is Status.COMPLETED:
            sample.status = Status.FAILED
        return sample

    args = arguments(custom=fails)
    source = source_for(args)
    for rollout_id in range(3):
        output = generate_rollout(args, rollout_id, source)
        assert all(sample.reward is not None for sample in samples.leaves(output.samples))


def test_pristine_keeps_who_it_is_and_nothing_generated() -> None:
    sample = Sample(3, 7, "5", [1, 5, 9], "x", 1, "label", 1.0, [1], ["4"], [-0.5], True, Status.COMPLETED)
    sample.metadata = {"april": {"legs": []}, "start_rollout_id": 1, "task": "sum"}
    fresh = samples.pristine(sample)
    assert fresh == Sample(3, 7, "5", label="label", metadata={"task": "sum"})
    assert sample.tokens == [1, 5, 9]
