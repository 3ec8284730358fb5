"""An ``april train`` that another command of ours starts and waits for."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping

PREFIX = "april: error: "


def run(
    command: list[str], follow: Callable[[subprocess.Popen[str]], None], environment: Mapping[str, str] | None = None
) -> str | None:
    """Start it, let ``follow`` show its progress, wait; returns why it failed, or None.

    Where ``follow`` is interrupted the run is ended, and has ended when this returns.
    """
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
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
