"""The partial buffer in the host's data source, and its checkpoints. Case 21."""

from __future__ import annotations

import copy
import pickle
import types
from pathlib import Path
from typing import Any

import pytest
from fake_host import World, arguments, install, source_for
from fake_sglang import FakeSglang

from april import learned, samples
from april.buffer import checkpoint
from april.buffer.source import COUNTERS
from april.errors import AprilError
from april.rollout import generate_rollout


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return install(monkeypatch, FakeSglang(lambda ids: (3, 40, 5, 50, 7)[ids[1] % 5]))


def contents(source: Any) -> list[Any]:
    groups = [samples.payload(group) for group in source.buffer.snapshot()]
    return [copy.deepcopy(sample.to_dict()) for sample in samples.leaves(groups)]


def crashed(source: Any, args: Any) -> Any:
    """A new process after the end of this one: what was not committed is gone."""
    source.buffer.close()
    return source_for(args)


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

    restored = crashed(source, args)
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
    held = contents(source)
    (tmp_path / "rollout" / "fake_0.txt").unlink()
    restored = crashed(source, args)
    restored.load(0)
    assert restored.sample_group_index == source.sample_group_index
    assert contents(restored) == held


def test_a_round_saved_after_the_next_has_run_is_that_round(world: World, tmp_path: Path) -> None:
    """slime's train_async.py: the buffer, the versions and the host's own state are those of the round saved."""
    args = arguments(save=tmp_path, load=tmp_path)
    source = source_for(args)
    generate_rollout(args, 0, source)
    held, clock, index = contents(source), source.clock.to_dict(), source.sample_group_index
    world.server.weight_version = "7"
    generate_rollout(args, 1, source)
    later = source.sample_group_index
    assert (contents(source), later) != (held, index)
    source.save(0)
    assert source.sample_group_index == later, "the run goes on from where it was"
    restored = crashed(source, args)
    restored.load(0)
    assert (contents(restored), restored.clock.to_dict(), restored.sample_group_index) == (held, clock, index)


def test_a_round_that_ended_but_was_not_saved_is_found_again(world: World, tmp_path: Path) -> None:
    """The model's checkpoint is written before ours: a crash in between."""
    args = arguments(save=tmp_path, load=tmp_path)
    source = source_for(args)
    generate_rollout(args, 0, source)
    held, index = contents(source), source.sample_group_index
    generate_rollout(args, 1, source)
    restored = crashed(source, args)
    assert len(restored.buffer) == 0
    restored.load(0)
    assert (contents(restored), restored.sample_group_index) == (held, index)
    for rollout_id in range(1, 6):
        generate_rollout(args, rollout_id, restored)
    again = crashed(restored, args)
    again.load(0)
    assert (contents(again), again.sample_group_index) == (held, index), "the checkpoint was completed"


def test_what_another_run_left_is_not_taken(world: World, tmp_path: Path) -> None:
    args = arguments(save=tmp_path / "a", load=None)
    source = source_for(args)
    generate_rollout(args, 0, source)
    args.load = tmp_path / "b"
    other = crashed(source, args)
    other.load(0)
    assert (len(other.buffer), other.sample_group_index) == (0, 0)
    args.load = args.save
    world.bindings.RolloutDataSource(args).save(0)
    (tmp_path / "a" / "rollout" / "fake_0.txt").write_text("0 99 198 5")
    other = crashed(other, args)
    other.load(0)
    assert (len(other.buffer), other.sample_group_index) == (0, 99)


def test_a_checkpoint_moved_elsewhere_starts_a_run_elsewhere(world: World, tmp_path: Path) -> None:
    source = source_for(arguments(save=tmp_path / "a"))
    generate_rollout(source.args, 0, source)
    source.save(0)
    held = contents(source)
    source.buffer.close()
    (tmp_path / "a").rename(tmp_path / "moved")
    files = {path: path.read_bytes() for path in (tmp_path / "moved").rglob("*") if path.is_file()}
    args = arguments(save=tmp_path / "b", load=tmp_path / "moved")
    restored = source_for(args)
    restored.load(0)
    assert contents(restored) == held
    generate_rollout(args, 1, restored)
    restored.save(1)
    assert {path: path.read_bytes() for path in files} == files, "the original is kept"


def test_a_checkpoint_of_format_1(world: World, tmp_path: Path) -> None:
    args = arguments(save=tmp_path, load=tmp_path)
    source = source_for(args)
    generate_rollout(args, 0, source)
    state = {
        "format": "april-buffer",
        "format_version": 1,
        "groups": [[member.payload.to_dict() for member in group.members] for group in source.buffer.snapshot()],
        "clock": source.clock.to_dict(),
        "dataset": {name: getattr(source, name) for name in COUNTERS},
    }
    held = contents(source)
    path = tmp_path / "rollout" / "april_buffer_5.pkl"
    path.write_bytes(pickle.dumps(state))
    restored = crashed(source, args)
    restored.load(5)
    assert (contents(restored), restored.clock.last) == (held, source.clock.last)


def test_a_rollout_function_that_tells_no_end_of_a_round(world: World, tmp_path: Path) -> None:
    args = arguments(save=tmp_path, load=tmp_path)
    source = source_for(args)
    source.add_samples(source.get_samples(2))
    source.save(0)
    source.add_samples(source.get_samples(3)[2:])
    source.save(0)
    held = contents(source)
    restored = crashed(source, args)
    restored.load(0)
    assert contents(restored) == held


def test_where_it_lives(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APRIL_RUN_DIR", raising=False)
    temporary = source_for(arguments())
    assert temporary.buffer.folder.is_dir()
    monkeypatch.setenv("APRIL_RUN_DIR", str(tmp_path / "run"))
    assert source_for(arguments()).buffer.folder == tmp_path / "run" / "buffer"
    assert source_for(arguments(save=tmp_path)).buffer.folder == tmp_path / "rollout" / "april_buffer"
    given = arguments(save=tmp_path, april_buffer_dir=str(tmp_path / "given"))
    assert source_for(given).buffer.folder == tmp_path / "given"


def test_a_bound_on_its_size_loses_tokens_but_no_prompt(world: World, tmp_path: Path) -> None:
    args = arguments(april_buffer_max_gb=2e-6, over_sampling_batch_size=6)
    source = source_for(args)
    trained = []
    for rollout_id in range(6):
        output = generate_rollout(args, rollout_id, source)
        trained += [group[0].group_index for group in output.samples]
    assert source.buffer.restarted > 0
    waiting = {group.index for group in source.buffer.snapshot()}
    assert sorted([*trained, *waiting]) == list(range(source.sample_group_index))


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
        crashed(source, args).load(0)


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps({"format": "other"}), pickle.dumps([1])])
def test_a_damaged_or_foreign_file_is_one_clear_error_and_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "buffer.pkl"
    path.write_bytes(content)
    with pytest.raises(AprilError, match=r"buffer.pkl is .*no buffer of ours.* it was left as it is"):
        checkpoint.read_pickle(path)
    assert path.read_bytes() == content


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


def test_what_rounds_have_taught_goes_on_after_a_restore(world: World, tmp_path: Path) -> None:
    args = arguments(save=tmp_path, load=tmp_path, april_over_sampling="auto", april_leg_budget="auto")
    source = source_for(args)
    for rollout_id in range(3):
        generate_rollout(args, rollout_id, source)
    source.save(2)
    taught = learned.to_dict(source)
    assert set(taught) == set(learned.KINDS)
    assert taught["length_sample"]["lengths"]
    generate_rollout(args, 3, source)
    assert learned.to_dict(source) != taught

    restored = crashed(source, args)
    restored.load(2)
    assert learned.to_dict(restored) == taught


def test_a_checkpoint_of_an_earlier_version_has_taught_nothing(world: World, tmp_path: Path) -> None:
    source = source_for(arguments(save=tmp_path))
    learned.restore(source, {})
    learned.restore(source, {"something_later": {"x": 1}})
    assert learned.to_dict(source) == {}
