"""An ``april train`` that another command of ours starts and waits for."""

from __future__ import annotations

import ctypes
import functools
import signal
import subprocess
from collections.abc import Callable, Mapping

PREFIX = "april: error: "
PR_SET_PDEATHSIG = 1


def run(
    command: list[str], follow: Callable[[subprocess.Popen[str]], None], environment: Mapping[str, str] | None = None
) -> str | None:
    """Start it, let ``follow`` show its progress, wait; returns why it failed, or None.

    Where ``follow`` is interrupted the run is ended, and has ended when this returns. It ends, too, where this process
    is killed.
    """
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=functools.partial(end_with_parent, signal.SIGTERM),
    )
    try:
        follow(process)
        said = process.communicate()[1]
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.communicate()
        raise
    if process.returncode == 0:
        return None
    reasons = [line for line in said.splitlines() if line.startswith(PREFIX)]
    return reasons[-1].removeprefix(PREFIX) if reasons else f"it ended with code {process.returncode}"


def end_with_parent(number: int) -> None:
    """In a process that was just forked: it gets this signal when the one that started it is gone, however that was."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
