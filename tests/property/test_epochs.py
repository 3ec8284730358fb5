"""Epochs over the whole rollout function and data source, with crashes: each prompt trained or waiting, once."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fake_host import arguments, install
from fake_sglang import FakeSglang
from hypothesis import given, settings
from hypothesis import strategies as st

from april import samples
from april.buffer.source import partial_data_source
from april.rollout import generate_rollout


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=3, max_size=9),
    prompts=st.integers(2, 9),
    target=st.integers(1, 3),
    extra=st.integers(0, 4),
    members=st.integers(1, 2),
    steps=st.lists(
        st.sampled_from(["round", "round", "save", "save_late", "crash", "crash_unsaved"]), min_size=4, max_size=10
    ),
    masked=st.booleans(),
)
def test_each_prompt_of_each_epoch_once(
    lengths: list[int], prompts: int, target: int, extra: int, members: int, steps: list[str], masked: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.delenv("APRIL_RUN_DIR", raising=False)
        world = install(patch, FakeSglang(lambda ids: lengths[ids[1] % len(lengths)], tick=0))
        args = arguments(
            save=Path(folder),
            load=Path(folder),
            prompts=prompts,
            rollout_batch_size=target,
            over_sampling_batch_size=target + extra,
            n_samples_per_prompt=members,
            mask_offpolicy_in_partial_rollout=masked,
        )
        source, trained = partial_data_source()(args), {}
        # What had been trained, and the last version, at the end of each round; and the round last saved.
        ends: dict[int, tuple[dict[int, int], int]] = {}
        saved: int | None = None
        first = 1  # of this process
        last_version, rollout_id, raw = 0, 0, 0
        for step in steps:
            if step == "round":
                rollout_id, raw = rollout_id + 1, raw + 1
                world.server.weight_version = str(raw)
                trained |= one_round(args, rollout_id, source, trained)
                assert source.clock.last > last_version
                last_version = source.clock.last
                ends[rollout_id] = dict(trained), last_version
            elif step == "save" and rollout_id in ends:
                saved = rollout_id
                source.save(saved)
            elif step == "save_late" and rollout_id - 1 >= first:
                # slime's train_async.py saves a round when the next one has run.
                saved = rollout_id - 1
                source.save(saved)
            elif (step == "crash" and saved is not None) or (step == "crash_unsaved" and rollout_id >= first):
                if step == "crash_unsaved":
                    # The model's checkpoint is written before ours.
                    saved = rollout_id
                    for path in (Path(folder) / "rollout").glob(f"*_{saved}*"):
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                assert saved is not None
                # A new process: engines count their versions from 1 again.
                rollout_id, raw, first = saved, 0, saved + 1
                ends = {number: end for number, end in ends.items() if number <= saved}
                trained, last_version = dict(ends[saved][0]), ends[saved][1]
                source.buffer.close()
                source = partial_data_source()(args)
                source.load(rollout_id)
            check_epochs(source, trained, prompts)


def one_round(args: Any, rollout_id: int, source: Any, before: dict[int, int]) -> dict[int, int]:
    output = generate_rollout(args, rollout_id, source)
    assert len(output.samples) == args.rollout_batch_size
    assert output.metrics["april/wasted_tokens"] == 0 or output.metrics["april/groups_expired"]
    for sample in samples.leaves(output.samples):
        samples.check(sample)
        assert sample.tokens == [1, int(sample.prompt), *range(1002, 1002 + sample.response_length)]
        assert sample.status.value in ("completed", "truncated")
        assert sample.reward == sample.response_length
        ages = [source.clock.last - leg.policy_version for leg in samples.legs_of(sample)]
        assert 0 <= min(ages) <= max(ages) <= 5
        assert ages == sorted(ages, reverse=True)
    new = {group[0].group_index: int(group[0].prompt) for group in output.samples}
    assert not set(new) & set(before), "trained twice"
    return new


def check_epochs(source: Any, trained: dict[int, int], prompts: int) -> None:
    waiting = {group.index: int(group.members[0].payload.prompt) for group in source.buffer.snapshot()}
    assert not set(waiting) & set(trained)
    given_out = trained | waiting
    assert sorted(given_out) == list(range(source.sample_group_index))
    for first in range(0, source.sample_group_index - prompts + 1, prompts):
        epoch = Counter(given_out[index] for index in range(first, first + prompts))
        assert epoch == Counter(range(prompts)), "an epoch has each prompt once"
