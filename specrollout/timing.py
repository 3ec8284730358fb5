"""Seconds of a step's phases: by the clock on a CPU, by events on a GPU, where they are known only later."""

from __future__ import annotations

import time
from typing import Any

import torch


class Marks:
    """Marks between the phases of one step; ``seconds()`` is valid once the device has passed the last mark."""

    def __init__(self, device: str) -> None:
        self._events = device in ("cuda", "hip")
        self._marks: list[Any] = []
        self.mark()

    def mark(self) -> None:
        """End the phase that runs."""
        if not self._events:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def seconds(self) -> list[float]:
        """Of each phase, in order."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._events:
            return [first.elapsed_time(last) / 1e3 for first, last in pairs]
        return [last - first for first, last in pairs]
