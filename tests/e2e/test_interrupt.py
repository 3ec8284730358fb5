"""A short run on the real stack whose requests stay in the engines over weight updates: none aborted, none lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import HOSTS, events, left_running, metrics, start
from test_partials import tokens_in

from april.buffer import checkpoint

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("host", HOSTS)
def test_requests_outlive_weight_updates(host: str, tmp_path: Path, train_flags: list[str]) -> None:
    run_dir, saved = tmp_path / "run", tmp_path / "checkpoint"
    flags = [*train_flags, "--april-interrupt", "retract", "--save", str(saved), "--save-interval", "3"]
    process = start(run_dir, flags, host)
    error = process.communicate(timeout=280)[1]
    assert process.returncode == 0, error
    assert left_running(run_dir) == []

    rounds = events(run_dir, "round")
    assert [this["rollout_id"] for this in rounds] == [0, 1, 2]
    assert all(this["groups_trained"] == 4 for this in rounds)
    assert all(this["groups_carried"] > 0 for this in rounds[:1])
    assert sum(this["partials_resumed"] for this in rounds) > 0
    assert all(this["partials_recycled"] == 0 for this in rounds), "nothing came back unfinished"
    assert max(this["max_lag"] for this in rounds) >= 1
    assert [this["stale_kv_tokens"] for this in rounds] == [0, 0, 0]
    assert [this["drain_errors"] for this in rounds] == [[], [], []]

    generated = sum(this["generated_tokens"] for this in rounds)
    trained = sum(this["trained_tokens"] for this in rounds)
    assert sum(this["wasted_tokens"] for this in rounds) == 0
    assert generated - trained == tokens_in(checkpoint.path_of(saved, 2))

    differences = metrics(run_dir, "train/train_rollout_logprob_abs_diff")
    assert len(differences) == 3
    assert differences[0] < 0.01
