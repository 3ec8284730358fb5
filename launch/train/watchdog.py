"""Ends the run when one of its processes dies: requests to a dead engine would be retried for many minutes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from april.launch.train import outcome
from april.patches.core import Process
from april.patches.receipts import Receipt, machine

PERIOD_S = 0.5
SETTLE_S = 1.0
"""After a death: what the main thread reports by itself in this time is the better reason."""
ENGINES = {Process.ENGINE, Process.TOKENIZER, Process.SCHEDULER}
INFRASTRUCTURE = {"gcs_server", "raylet"}
CHILDREN = {Process.ROLLOUT_MANAGER: "router", Process.TOKENIZER: "detokenizer"}
"""Kinds of process whose other children must live too, and what these are."""


class Watchdog:
    """Watches the processes of this machine that reported, their servers, and Ray's own.

    The pids of another machine mean nothing here; of what dies there Ray tells the driver. With fault tolerance the
    host restarts engines by itself, and they are not watched.
    """

    def __init__(self, run_dir: Path, tolerate_engines: bool) -> None:
        self._run_dir = run_dir
        self._tolerate_engines = tolerate_engines
        self._stop = threading.Event()

    def start(self, receipts: list[Receipt]) -> None:
        """Begin to watch."""
        reported = to_watch(receipts, machine(), self._tolerate_engines)
        watched = {**dict(_infrastructure()), **dict(_children(reported)), **{r.pid: r.role.value for r in reported}}
        begun = {pid: started for pid in watched if (started := _started(pid)) is not None}
        threading.Thread(target=self._watch, args=(watched, begun), daemon=True, name="april-watchdog").start()

    def stop(self) -> None:
        """The run ends by itself now."""
        self._stop.set()

    def _watch(self, watched: dict[int, str], begun: dict[int, float]) -> None:
        while not self._stop.wait(PERIOD_S):
            dead = [pid for pid, started in begun.items() if _started(pid) != started]
            if dead and not self._stop.wait(SETTLE_S):
                self._end(", ".join(f"{watched[pid]} process {pid}" for pid in dead))

    def _end(self, who: str) -> None:
        outcome.record(self._run_dir, f"the {who} died during the run; see the logs in {self._run_dir / 'logs'}", 1)
        os._exit(1)  # the main thread may be waiting for the dead process; the supervisor cleans up


def to_watch(receipts: Iterable[Receipt], here: str, tolerate_engines: bool) -> list[Receipt]:
    """The processes on this machine whose death ends the run."""
    ignored = {Process.DRIVER, *(ENGINES if tolerate_engines else ())}
    return [receipt for receipt in receipts if receipt.machine == here and receipt.role not in ignored]


def _infrastructure() -> Iterator[tuple[int, str]]:
    """Ray's own processes below this one."""
    for process in psutil.Process().children(recursive=True):
        try:
            name = process.name()
        except psutil.NoSuchProcess:
            continue
        if name in INFRASTRUCTURE:
            yield process.pid, name


def _children(receipts: Iterable[Receipt]) -> Iterator[tuple[int, str]]:
    """The servers that reporting processes have started."""
    for receipt in receipts:
        if receipt.role in CHILDREN:
            for child in psutil.Process(receipt.pid).children():
                yield child.pid, CHILDREN[receipt.role]


def _started(pid: int) -> float | None:
    """When process ``pid`` of this node started, or None when there is none (or only its remains)."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None
