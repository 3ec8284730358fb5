"""When each response ended: the hosts' group call tells only when all of a group have, so a thread looks."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

INTERVAL_S = 0.05


class Timeline:
    """Remembers when each watched sample last changed status or length, to within ``INTERVAL_S``.

    Use as a context manager; reads ``status`` and ``response_length`` of the samples and nothing else.
    """

    def __init__(self, interval: float = INTERVAL_S) -> None:
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="april-timeline", daemon=True)
        # id -> (sample, what it looked like, start, last change or None); the sample is held, so ids stay unique.
        self._watched: dict[int, tuple[Any, tuple[Any, int], float, float | None]] = {}

    def __enter__(self) -> Timeline:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def watch(self, sample: Any) -> None:
        """Start a span for this sample now."""
        self._watched[id(sample)] = (sample, _look(sample), time.time(), None)

    def span(self, sample: Any) -> tuple[float, float] | None:
        """Start and last change (now, where it has not been seen to change); None for a sample not watched."""
        seen = self._watched.get(id(sample))
        if seen is None:
            return None
        _, _, start, change = seen
        return start, time.time() if change is None else change

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            for key, (sample, look, start, _) in list(self._watched.items()):
                if (now := _look(sample)) != look:
                    self._watched[key] = (sample, now, start, time.time())


def _look(sample: Any) -> tuple[Any, int]:
    return sample.status, sample.response_length
