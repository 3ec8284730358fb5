"""The partial buffer in the host's data source, and its checkpoints. Case 21."""

from __future__ import annotations

import copy
import pickle
import types
from pathlib import Path
from typing import Any

import pytest
from fake_engine import finished, partial
from fake_host import World, arguments, install, source_for
from fake_sglang import FakeSglang

from april import samples
from april.buffer import checkpoint
from april.buffer.memory import MemoryBuffer
from april.errors import AprilError
from april.rollout import generate_rollout


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return install(monkeypatch, FakeSglang(lambda ids: (3, 40, 5, 50, 7)[ids[1] % 5]))


def contents(source: Any) -> list[Any]:
    groups = [samples.payload(group) for group in source.buffer.snapshot()]
    return [copy.deepcopy(sample.to_dict()) for sample in samples.leaves(groups)]


def test_memory_buffer() -> None:
    buffer = MemoryBuffer(max_response_len=10)
    buffer.put([partial(1, 5, 2, [9]), partial(2, 4, 2, [9]), finished(3, 5)])
    assert len(buffer) == 3
    assert [group.index for group in buffer.snapshot()] == [3, 2, 1]
    assert [group.index for group in buffer.take(2)] == [3, 2]
    assert [group.index for group in buffer.take(5)] == [1]
    buffer.put([partial(1, 5, 2, [9])])
    with pytest.raises(AprilError, match="group 1 is in the buffer already"):
        buffer.put([partial(1, 5, 2, [9])])


def test_identical_partials_after_a_restore_and_each_prompt_once_an_epoch(world: World, tmp_path: Path) -> None:
    """Saved after round 1, crashed in round 2: two epochs in all, with every prompt trained or waiting exactly once."""
    args = arguments(save=tmp_path, load=tmp_path, prompts=7)
    source, trained = source_for(args), []
    for rollout_id in range(2):
        world.server.weight_version = str(rollout_id + 1)
        trained += [group[0].group_index for group in generate_rollout(args, rollout_id, source).samples]
        source.save(rollout_id)
    held = contents(source)
    assert any(sample["status"] == "aborted" and sample["response_length"] for sample in held)
    generate_rollout(args, 2, source)

    restored = source_for(args)
    restored.load(1)
    assert contents(restored) == held
    world.server.weight_version = "1"
    prompts = {}
    for rollout_id in range(2, 7):
        output = generate_rollout(args, rollout_id, restored)
        trained += [group[0].group_index for group in output.samples]
        for sample in samples.leaves(output.samples):
            legs = samples.legs_of(sample)
            assert [leg.policy_version for leg in legs] == sorted(leg.policy_version for leg in legs)
            prompts[sample.group_index] = int(sample.prompt)
    waiting = {sample["group_index"]: int(sample["prompt"]) for sample in contents(restored)}
    assert sorted([*trained, *waiting]) == list(range(restored.sample_group_index))
    prompts |= waiting
    second_epoch = [prompts[index] for index in range(7, 14)]
    assert sorted(second_epoch) == list(range(7))
    assert restored.clock.last > 2, "versions go on"


def test_the_host_state_may_be_missing_after_a_crash_between_the_two_files(world: World, tmp_path: Path) -> None:
    args = arguments(save=tmp_path, load=tmp_path)
    source = source_for(args)
    generate_rollout(args, 0, source)
    source.save(0)
    (tmp_path / "rollout" / "fake_0.txt").unlink()
    restored = source_for(args)
    restored.load(0)
    assert restored.sample_group_index == source.sample_group_index
    assert contents(restored) == contents(source)


def test_a_checkpoint_without_a_buffer_and_no_checkpoint_at_all(world: World, tmp_path: Path) -> None:
    args = arguments(save=tmp_path, load=tmp_path)
    source = source_for(args)
    source.load(4)
    assert (len(source.buffer), source.sample_group_index) == (0, 0)
    world.bindings.RolloutDataSource(args).save(3)
    source.load(3)
    assert len(source.buffer) == 0


def test_a_buffer_of_another_state_is_refused(world: World, tmp_path: Path) -> None:
    args = arguments(save=tmp_path, load=tmp_path)
    source = source_for(args)
    generate_rollout(args, 0, source)
    source.save(0)
    (tmp_path / "rollout" / "fake_0.txt").write_text("0 99 198 5")
    with pytest.raises(AprilError, match="was saved with the dataset at"):
        source_for(args).load(0)


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps({"format": "other"}), pickle.dumps([1])])
def test_a_damaged_or_foreign_file_is_one_clear_error_and_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "buffer.pkl"
    path.write_bytes(content)
    with pytest.raises(AprilError, match=r"buffer.pkl is .*no buffer of ours.* it was left as it is"):
        checkpoint.read(path)
    assert path.read_bytes() == content


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = checkpoint.path_of(tmp_path, 3)
    checkpoint.write(path, {"groups": [1]})
    with pytest.raises((AttributeError, pickle.PicklingError)):
        checkpoint.write(path, {"groups": [lambda: None]})
    assert checkpoint.read(path)["groups"] == [1]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_more_prompts_than_an_epoch_at_once(world: World) -> None:
    source = source_for(arguments(prompts=3))
    groups = source.get_samples(8)
    assert [int(group[0].prompt) for group in groups] == [0, 1, 2, 1, 2, 0, 2, 0]


def test_an_empty_dataset(world: World) -> None:
    args = arguments(prompts=0)
    with pytest.raises(AprilError, match="0 of 2 groups can still finish and the data source has no more prompts"):
        generate_rollout(args, 0, source_for(args))


def test_the_buffer_filter_of_the_host(world: World) -> None:
    def newest_first(args: Any, rollout_id: Any, buffer: list[Any], count: int) -> list[Any]:
        chosen = sorted(buffer, key=lambda group: -group[0].group_index)[:count]
        for group in chosen:
            buffer.remove(group)
        return chosen

    world.hooks.newest = newest_first
    source = source_for(arguments(buffer_filter_path="newest"))
    source.add_samples(source.get_samples(3))
    assert [group[0].group_index for group in source.get_samples(2)] == [2, 1]
    assert source.get_buffer_length() == 1


def test_a_group_of_another_size_is_refused(world: World) -> None:
    source = source_for(arguments())
    [group] = source.get_samples(1)
    with pytest.raises(AprilError, match="a group of 1 samples came back, --n-samples-per-prompt is 2"):
        source.add_samples([group[:1]])


def test_a_group_without_its_index_is_refused() -> None:
    sample = types.SimpleNamespace(group_index=None, metadata={})
    with pytest.raises(AprilError, match="no group_index"):
        samples.group_of([sample])
