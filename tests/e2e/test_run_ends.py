"""However a run ends, it says why in one line and leaves nothing running."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from runs import events, left_running, start, wait_for

from april.launch.environment.paths import miles_root

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(miles_root() is None, reason="miles is not unpacked here")]


def test_a_killed_engine(tmp_path: Path, train_flags: list[str]) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, [*train_flags, "--num-rollout", "1000"])
    pids = wait_for(run_dir, "ready", process)["processes"]
    wait_for(run_dir, "round", process)
    os.kill(pids["scheduler"], signal.SIGKILL)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert f"april: error: the scheduler process {pids['scheduler']} died" in error.splitlines()[-1]
    assert left_running(run_dir) == []


def test_sigterm(tmp_path: Path, train_flags: list[str]) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, [*train_flags, "--num-rollout", "1000"])
    wait_for(run_dir, "cluster", process)
    time.sleep(5)  # actors and engines are starting
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert left_running(run_dir) == []


def test_an_unknown_flag(tmp_path: Path, train_flags: list[str]) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, [*train_flags, "--rolout-batch-size", "4"])
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert error.splitlines()[-1] == (
        "april: error: unknown flag --rolout-batch-size (did you mean --rollout-batch-size?)"
    )
    assert not events(run_dir, "cluster")
    assert left_running(run_dir) == []
