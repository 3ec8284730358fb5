"""One set-up at a time, and what a killed one left running is ended; nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from april.launch.environment import guard
from april.launch.environment.commands import Runner
from april.launch.environment.errors import SetupError

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to be ended after a test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start(mark: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(SLEEP, env={**os.environ, guard.MARK: mark}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_second_set_up_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "build" / "setup.lock"
    refused = rf"another set-up is running .* \(process {os.getpid()}\)"
    with guard.only_one(lock), pytest.raises(SetupError, match=refused), guard.only_one(lock):
        pass
    with guard.only_one(lock):
        pass


def test_the_lock_ends_with_its_holder_however_it_ends(tmp_path: Path) -> None:
    lock = tmp_path / "setup.lock"
    script = (
        "import sys, time; from pathlib import Path; from april.launch.environment import guard\n"
        f"with guard.only_one(Path({str(lock)!r})): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(SetupError), guard.only_one(lock):
        pass
    holder.kill()
    holder.wait()
    with guard.only_one(lock):
        pass


def test_leftovers_of_this_checkout_are_ended_and_no_others(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    ours, other = start(str(tmp_path)), start(str(tmp_path / "another"))
    started += [ours, other]
    assert guard.leftovers(tmp_path) == [ours.pid]
    # The dead child stays in the process table until it is waited for, with an environment that reads as empty.
    assert guard.end_leftovers(tmp_path) == 1
    assert ours.wait(5) == -signal.SIGKILL
    assert other.poll() is None
    assert guard.end_leftovers(tmp_path) == 0


def test_installers_die_with_the_set_up(tmp_path: Path) -> None:
    script = (
        "import os; from pathlib import Path; from april.launch.environment import commands, progress; import sys\n"
        f"runner = commands.Runner(Path({str(tmp_path)!r}) / 'log', progress.Progress(1, sys.stderr),\n"
        f"    {{**os.environ, {guard.MARK!r}: {str(tmp_path)!r}}})\n"
        f"runner.run({SLEEP!r}, 'sleeping')"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not guard.leftovers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(guard.leftovers(tmp_path)) == 1
    parent.kill()
    parent.wait()
    while guard.leftovers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert guard.leftovers(tmp_path) == []


def test_the_runner_uses_what_it_is_given(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "log", None, {"PATH": os.environ["PATH"], "WORD": "here"})  # type: ignore[arg-type]
    assert "here" in runner.run([sys.executable, "-c", "import os; print(os.environ['WORD'])"], "trying")
