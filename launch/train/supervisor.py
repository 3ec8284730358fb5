"""Starts the driver of a run, passes signals on, and ends everything that came of it, and only that.

The supervisor is a subreaper: whatever the driver starts (Ray, engines, router) stays its descendant even when the
parent in between dies, so that the descendants at the end are exactly what the run left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from april.errors import UsageError
from april.launch.train import outcome

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SESSION = "april-ray-"
GRACE_S = 15.0
"""How long the driver may take to shut down after a signal, and what it left behind to end by itself."""


def run(
    command: list[str],
    environment: Mapping[str, str],
    run_dir: Path,
    echo: bool,
    beside: contextlib.AbstractContextManager[Any] | None = None,
    report: Callable[[Path], None] = lambda run_dir: None,
) -> int:
    """Run ``command`` to its end; returns its exit code (128 + signal number after a signal).

    Its output goes to ``run_dir/logs/driver.log``, and to our own when ``echo``. The reason of a failure, which the
    driver leaves in ``run_dir/error.json``, is printed as one line, the last. ``beside`` is entered while the driver
    runs; ``report`` is called when all has ended.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    log = run_dir / "logs" / "driver.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    _sweep()
    session = Path(tempfile.mkdtemp(prefix=f"{SESSION}{os.getpid()}-"))
    environment = {**environment, "APRIL_RAY_DIR": str(session)}
    received: list[int] = []
    with log.open("wb") as sink:
        driver = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )

        def forward(signum: int, frame: Any) -> None:
            received.append(signum)
            driver.send_signal(signal.SIGTERM)
            threading.Thread(target=_end_stuck, args=(driver,), daemon=True).start()

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup and shells that background a job
                signal.signal(signum, forward)
        assert driver.stdout is not None
        reader = threading.Thread(target=_copy, args=(driver.stdout, sink, echo), daemon=True)
        reader.start()
        with beside or contextlib.nullcontext():
            code = driver.wait()
        end_descendants()
        reader.join(timeout=GRACE_S)
    _keep_logs(session, run_dir / "logs" / "ray")
    report(run_dir)
    if received:
        (run_dir / outcome.FILE).unlink(missing_ok=True)  # what the end of its processes looked like to the driver
        print("april: interrupted; everything that the run started has ended", file=sys.stderr)
        return 128 + received[0]
    return _outcome(code, run_dir, log)


def end_descendants() -> list[int]:
    """Terminate, then kill, every descendant of this process; returns the pids that had to be ended."""
    import psutil

    ended: list[int] = []
    while left := psutil.Process().children(recursive=True):
        for child in left:
            ended.append(child.pid)
            _send(child, signal.SIGTERM)
        _, alive = psutil.wait_procs(left, timeout=3)
        for child in alive:
            _send(child, signal.SIGKILL)
        psutil.wait_procs(alive, timeout=3)
    return ended


def _sweep() -> None:
    """Remove the sessions of supervisors that were killed before they could."""
    import psutil

    for path in Path(tempfile.gettempdir()).glob(f"{SESSION}*-*"):
        pid = path.name.removeprefix(SESSION).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _keep_logs(session: Path, target: Path) -> None:
    """Move Ray's logs into the run directory and remove its session, which is elsewhere for short socket paths."""
    logs = session / "session_latest" / "logs"
    try:
        if logs.exists():
            shutil.copytree(logs, target, symlinks=True, dirs_exist_ok=True)
    except OSError as error:  # shutil.Error included: the run's own end is what counts
        print(f"april: Ray's logs were not kept: {error}", file=sys.stderr)
    shutil.rmtree(session, ignore_errors=True)


def _send(child: Any, signum: int) -> None:
    import psutil

    try:
        child.send_signal(signum)
    except psutil.NoSuchProcess:
        return  # it ended by itself


def _end_stuck(driver: subprocess.Popen[bytes]) -> None:
    try:
        driver.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        driver.kill()


def _copy(source: IO[bytes], sink: IO[bytes], echo: bool) -> None:
    """Copy until the end whatever happens to the readers: a driver with a full pipe would stand still."""
    targets = [sink, sys.stderr.buffer] if echo else [sink]
    for line in iter(source.readline, b""):
        for target in list(targets):
            try:
                target.write(line)
                target.flush()
            except OSError:  # a closed terminal or pipe, a full disk
                targets.remove(target)


def _outcome(code: int, run_dir: Path, log: Path) -> int:
    """The exit code, with the reason of a failure on stderr."""
    error = run_dir / outcome.FILE
    if error.exists():
        body = json.loads(error.read_text())
        print(f"april: error: {body['message']}", file=sys.stderr)
        if body["exit_code"] == UsageError.exit_code:
            shutil.rmtree(run_dir)  # nothing has run: the same command, put right, may use the name again
        return int(body["exit_code"])
    if code != 0:
        print(f"april: error: the driver ended with code {code}; its output is in {log}", file=sys.stderr)
        return 1
    return 0


def _prctl(option: int, value: int) -> None:
    """Linux process control; elsewhere a run may leave orphans, which is said where it is started."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
