"""A run that another command of ours waits for ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[1], "ended").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1], "started").touch()
time.sleep(60)
"""
PARENT = """
import sys
from april.launch import child
child.run([sys.executable, "-c", sys.argv[2], sys.argv[1]], lambda process: process.wait())
"""


def appears(path: Path) -> bool:
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.exists()


def test_a_run_is_told_to_end_when_its_command_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), CHILD])
    assert appears(tmp_path / "started")
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert appears(tmp_path / "ended")
