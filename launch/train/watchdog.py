"""Ends the run when one of its processes dies: requests to a dead engine would be retried for many minutes."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import psutil

from april.patches.core import Process
from april.patches.receipts import Receipt

PERIOD_S = 0.5
ENGINES = {Process.ENGINE, Process.TOKENIZER, Process.SCHEDULER}


class Watchdog:
    """Watches the processes of this node that reported; with fault tolerance the host restarts engines by itself."""

    def __init__(self, run_dir: Path, tolerate_engines: bool) -> None:
        self._run_dir = run_dir
        self._tolerate_engines = tolerate_engines
        self._stop = threading.Event()

    def start(self, receipts: list[Receipt]) -> None:
        """Begin to watch."""
        watched = {
            receipt.pid: (receipt.role, _started(receipt.pid))
            for receipt in receipts
            if receipt.role is not Process.DRIVER and not (self._tolerate_engines and receipt.role in ENGINES)
        }
        threading.Thread(target=self._watch, args=(watched,), daemon=True, name="april-watchdog").start()

    def stop(self) -> None:
        """The run ends by itself now."""
        self._stop.set()

    def _watch(self, watched: dict[int, tuple[Process, float | None]]) -> None:
        while not self._stop.wait(PERIOD_S):
            for pid, (role, started) in watched.items():
                if started is not None and _started(pid) != started and not self._stop.is_set():
                    self._end(pid, role)

    def _end(self, pid: int, role: Process) -> None:
        message = f"the {role.value} process {pid} died during the run; its last words are in {self._run_dir / 'logs'}"
        (self._run_dir / "error.json").write_text(json.dumps({"message": message, "exit_code": 1}))
        os._exit(1)  # the main thread may be waiting for the dead process; the supervisor cleans up


def _started(pid: int) -> float | None:
    """When process ``pid`` of this node started, or None when there is none (or only its remains)."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None
