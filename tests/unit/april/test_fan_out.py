"""A custom generate function that makes several samples of one. Cases 2 and 5."""

from __future__ import annotations

import copy
from typing import Any

from fake_host import World, arguments, source_for

from april import samples
from april.rollout import generate_rollout


def fanning(world: World, **changes: Any) -> Any:
    async def fan(args: Any, sample: Any, params: Any) -> Any:
        whole = await world.host.generate(args, sample, params)
        twin = copy.deepcopy(whole)
        twin.group_index = whole.group_index
        return [whole, twin]

    values = {"rollout_batch_size": 1, "over_sampling_batch_size": 2, "prompts": 2, **changes}
    return arguments(custom=fan, custom_generate_function_path="fan", **values)


def test_lists_survive_and_an_aborted_leaf_recycles_its_group(world: World) -> None:
    """Cases 2 and 5."""
    args = fanning(world)
    source = source_for(args)
    [group] = generate_rollout(args, 0, source).samples
    assert [len(member) for member in group] == [2, 2]
    for sample in samples.leaves(group):
        assert sample.reward == 3.0
        assert samples.origin_of(sample) is None
        samples.check(sample)
    [held] = source.buffer.snapshot()
    assert all(isinstance(member.payload, list) for member in held.members)
    assert not held.has_ended
    args.over_sampling_batch_size = 1
    output = generate_rollout(args, 1, source)
    for sample in samples.leaves(output.samples):
        assert sample.response_length == 40
        assert [leg.start for leg in samples.legs_of(sample)] == [0]
    assert output.metrics["april/wasted_tokens"] == held.tokens, "what a fan-out cannot resume is counted"


def test_a_finished_list_is_kept_beside_an_unfinished_one(world: World) -> None:
    counts: dict[int, int] = {}

    def length(ids: list[int]) -> int:
        counts[ids[1]] = counts.get(ids[1], 0) + 1
        return 6 if ids[1] == 0 else (2 if counts[ids[1]] == 1 else 40)

    world.server.length = length
    args = fanning(world)
    source = source_for(args)
    generate_rollout(args, 0, source)
    ended = copy.deepcopy(source.buffer.snapshot()[0].members[0].payload)
    args.over_sampling_batch_size = 1
    [[first, second]] = generate_rollout(args, 1, source).samples
    for kept, was in zip(first, ended, strict=True):
        assert (kept.tokens, kept.reward, kept.loss_mask) == (was.tokens, was.reward, was.loss_mask)
    assert [sample.response_length for sample in second] == [40, 40]
