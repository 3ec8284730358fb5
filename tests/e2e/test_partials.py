"""A short run on the real stack: partials are resumed, no token is lost, and the buffer is part of the checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from runs import HOSTS, events, left_running, metrics, start

from april.buffer import checkpoint, reader

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("host", HOSTS)
def test_partials_are_resumed_and_no_token_is_lost(host: str, tmp_path: Path, train_flags: list[str]) -> None:
    run_dir, saved = tmp_path / "run", tmp_path / "checkpoint"
    process = start(run_dir, [*train_flags, "--save", str(saved), "--save-interval", "3"], host)
    error = process.communicate(timeout=280)[1]
    assert process.returncode == 0, error
    assert left_running(run_dir) == []

    rounds = events(run_dir, "round")
    assert [this["rollout_id"] for this in rounds] == [0, 1, 2]
    assert sum(this["partials_resumed"] for this in rounds) > 0
    assert max(this["max_lag"] for this in rounds) >= 1
    assert all(this["groups_trained"] == 4 for this in rounds)
    assert all(this["load_after"] == 0 for this in rounds)

    generated = sum(this["generated_tokens"] for this in rounds)
    trained = sum(this["trained_tokens"] for this in rounds)
    assert generated == sum(span["tokens"] for this in rounds for span in this["spans"])
    assert sum(this["wasted_tokens"] for this in rounds) == 0
    assert generated - trained == tokens_in(checkpoint.path_of(saved, 2))

    differences = metrics(run_dir, "train/train_rollout_logprob_abs_diff")
    assert len(differences) == 3
    assert differences[0] < 0.01  # the first round has no partials


@pytest.mark.skipif("SLIME_DIR" not in os.environ, reason="SLIME_DIR is not set: miles has no asynchronous loop")
def test_an_asynchronous_run_saves_the_buffer_of_the_round_that_it_saves(
    tmp_path: Path, train_flags: list[str]
) -> None:
    run_dir, saved = tmp_path / "run", tmp_path / "checkpoint"
    process = start(run_dir, ["--async", *train_flags, "--save", str(saved), "--save-interval", "1"], "slime")
    error = process.communicate(timeout=280)[1]
    assert process.returncode == 0, error
    rounds = events(run_dir, "round")
    assert sum(this["wasted_tokens"] for this in rounds) == 0
    held = 0
    for this in rounds:
        held += this["generated_tokens"] - this["trained_tokens"]
        assert held == tokens_in(checkpoint.path_of(saved, this["rollout_id"]))


def tokens_in(folder: Path) -> int:
    """Response tokens in a saved buffer."""
    with reader.opened(folder) as saved:
        return sum(entry.tokens for entry in saved.index.entries())
