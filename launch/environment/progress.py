"""Lines that say which step of how many runs, what it is at and for how long."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

HEARTBEAT = 15.0
"""Seconds between lines where the output is not a terminal."""


class Progress:
    """Progress of a set-up of ``total`` steps; a line that is rewritten on a terminal, a few lines elsewhere."""

    def __init__(self, total: int, out: TextIO) -> None:
        self.total = total
        self.out = out
        self.live = out.isatty()
        self.started = time.monotonic()
        self.label = ""
        self.step_started = 0.0
        self.last_line = 0.0

    def begin(self, number: int, title: str) -> None:
        """Step ``number`` (from 1) starts."""
        self.label = f"[{number}/{self.total}] {title}"
        self.step_started = self.last_line = time.monotonic()
        self._write(self.label, final=not self.live)

    def update(self, detail: str) -> None:
        """What the step is at; shown at once on a terminal, every ``HEARTBEAT`` seconds elsewhere."""
        now = time.monotonic()
        if self.live or now - self.last_line >= HEARTBEAT:
            self.last_line = now
            self._write(f"{self.label}: {detail} ({now - self.step_started:.0f} s)", final=not self.live)

    def end(self, summary: str) -> None:
        """The step is done."""
        self._write(f"{self.label}: {summary} ({time.monotonic() - self.step_started:.1f} s)", final=True)

    def say(self, text: str) -> None:
        """A line of its own."""
        self._write(text, final=True)

    def interrupt(self) -> None:
        """Leave a live line as it is, before an error is printed below it."""
        if self.live:
            self.out.write("\n")
            self.out.flush()

    @property
    def elapsed(self) -> float:
        """Seconds since the set-up started."""
        return time.monotonic() - self.started

    def _write(self, text: str, *, final: bool) -> None:
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            self.out.write("\r\x1b[K" + (text if final else text[:width]) + ("\n" if final else ""))
        else:
            self.out.write(text + "\n")
        self.out.flush()
