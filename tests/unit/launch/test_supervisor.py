"""The supervisor ends what the run left behind, only that, and says why the run failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

DRIVER = """
import json, os, subprocess, sys, time
# an orphan that has left the driver's session and its parent
code = "import subprocess,sys,time; p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(600)']," \\
       "start_new_session=True,stdin=-3,stdout=-3,stderr=-3); print(p.pid, flush=True)"
orphan = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
open(os.environ["APRIL_RUN_DIR"] + ".orphan", "w").write(str(orphan))
{end}
"""
SUPERVISE = """
import os, sys
from pathlib import Path
from april.launch.train import supervisor
run_dir = Path(os.environ["APRIL_RUN_DIR"])
sys.exit(supervisor.run([sys.executable, str(run_dir / "driver.py")], os.environ, run_dir, False))
"""


def supervised(run_dir: Path, end: str) -> subprocess.Popen[str]:
    run_dir.mkdir()
    (run_dir / "driver.py").write_text(DRIVER.format(end=textwrap.dedent(end)))
    environment = {**os.environ, "APRIL_RUN_DIR": str(run_dir)}
    return subprocess.Popen([sys.executable, "-c", SUPERVISE], env=environment, stderr=subprocess.PIPE, text=True)


def gone(run_dir: Path) -> bool:
    return not psutil.pid_exists(int(run_dir.with_suffix(".orphan").read_text()))


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("", 0, ""),
        ("sys.exit(7)", 1, "the driver ended with code 7"),
        (
            "body = {'message': 'no such thing', 'exit_code': 2}\n"
            "json.dump(body, open(os.environ['APRIL_RUN_DIR'] + '/error.json', 'w'))\n"
            "sys.exit(2)",
            2,
            "april: error: no such thing",
        ),
    ],
)
def test_nothing_is_left_whatever_the_end(tmp_path: Path, end: str, code: int, says: str) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = supervised(tmp_path / "run", end)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert says in error
    assert gone(tmp_path / "run")
    assert (tmp_path / "run").exists() == (code != 2)  # nothing had started: the name is free again
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_all(tmp_path: Path, signum: signal.Signals) -> None:
    process = supervised(tmp_path / "run", "time.sleep(600)")
    orphan = tmp_path / "run.orphan"
    while not orphan.exists() or not orphan.read_text():
        time.sleep(0.05)
    process.send_signal(signum)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signum
    assert "everything that the run started has ended" in error
    assert gone(tmp_path / "run")


def test_the_drivers_output_is_kept(tmp_path: Path) -> None:
    supervised(tmp_path / "run", "print('a line of the host')").communicate(timeout=60)
    assert "a line of the host" in (tmp_path / "run" / "logs" / "driver.log").read_text()


def test_a_reader_that_goes_away_does_not_stop_the_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "driver.py").write_text("[print('line', i, 'x' * 200, flush=True) for i in range(5000)]")
    environment = {**os.environ, "APRIL_RUN_DIR": str(run_dir)}
    code = SUPERVISE.replace("run_dir, False", "run_dir, True")
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert "line 4999" in (run_dir / "logs" / "driver.log").read_text()


def test_nohup_is_respected(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "driver.py").write_text("import time; print('up', flush=True); time.sleep(3)")
    environment = {**os.environ, "APRIL_RUN_DIR": str(run_dir)}
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + SUPERVISE
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    log = run_dir / "logs" / "driver.log"
    while not log.exists() or "up" not in log.read_text():
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 0
