"""Starting a real run and reading what it left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from april.launch.environment.paths import miles_root

READY_S = 150
HOSTS = [
    pytest.param("miles", marks=pytest.mark.skipif(miles_root() is None, reason="miles is not unpacked here")),
    pytest.param("slime", marks=pytest.mark.skipif("SLIME_DIR" not in os.environ, reason="SLIME_DIR is not set")),
]


def start(run_dir: Path, flags: list[str], host: str = "miles") -> subprocess.Popen[str]:
    """``april train`` in the background."""
    ours = ["--host", host, "--quiet", "--run-dir", str(run_dir)]
    command = [sys.executable, "-m", "april.launch.cli", "train", *ours, *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """The events of one kind so far."""
    path = run_dir / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def metrics(run_dir: Path, name: str) -> list[float]:
    """Every logged value of a metric."""
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [row[name] for row in rows if name in row]


def wait_for(run_dir: Path, kind: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    """The first event of a kind."""
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
