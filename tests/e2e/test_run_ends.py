"""However a run ends, it says why in one line and leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from april.launch.environment.paths import miles_root

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(miles_root() is None, reason="miles is not unpacked here")]

READY_S = 150


def start(run_dir: Path, flags: list[str]) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "april.launch.cli",
        "train",
        "--host",
        "miles",
        "--quiet",
        "--run-dir",
        str(run_dir),
    ]
    return subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True)


def events(run_dir: Path, kind: str) -> list[dict[str, object]]:
    path = run_dir / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def wait_for(run_dir: Path, kind: str, process: subprocess.Popen[str]) -> dict[str, object]:
    deadline = time.monotonic() + READY_S
    while not events(run_dir, kind):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline, f"no {kind} event within {READY_S} s"
        time.sleep(0.2)
    return events(run_dir, kind)[0]


def left_running(run_dir: Path) -> list[str]:
    """Processes that still carry this run's directory in their environment."""
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("APRIL_RUN_DIR") == str(run_dir) and process.pid != os.getpid():
                left.append(f"{process.pid} {process.name()}")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return left


def test_a_killed_engine(tmp_path: Path, train_flags: list[str]) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, [*train_flags, "--num-rollout", "1000"])
    pids = wait_for(run_dir, "ready", process)["processes"]
    wait_for(run_dir, "round", process)
    assert isinstance(pids, dict)
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
