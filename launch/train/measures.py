"""Figures that come from several lines of a run's files: memory by tag, how much was decoded speculatively."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from april.memory.report import STEP as MEMORY_STEP
from specrollout.controller import SPECULATING

MEMORY = "memory/"


def memory(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """By tag, in bytes: the most that was ``reserved``, and of it ``paused`` (given back), summed over the processes.

    A process may have its peaks at different moments than another: an upper bound of what the run had at once.
    """
    peaks: dict[tuple[int, str, str], int] = {}
    for row in rows:
        if row.get("step_key") != MEMORY_STEP:
            continue
        for name, value in row.items():
            if name.startswith(MEMORY) and name.count("/") == 2:
                _, tag, what = name.split("/")
                key = (row["pid"], tag, what)
                peaks[key] = max(peaks.get(key, 0), int(value))
    found: dict[str, dict[str, int]] = {}
    for (_, tag, what), value in peaks.items():
        if what in ("reserved", "paused"):
            sums = found.setdefault(tag, {"reserved": 0, "paused": 0})
            sums[what] += value
    return found


class SdShare:
    """The share of the engines' decode steps that speculated, from their log of decisions.

    The log has a line where a decision changes and every hundred steps, so the last steps may be missing.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, bool]] = {}  # engine -> step so far, speculating
        self._steps = {True: 0, False: 0}

    def take(self, entry: Mapping[str, Any]) -> None:
        """The next line."""
        step, on = self._last.get(entry["engine"], (entry["step"], False))
        self._steps[on] += entry["step"] - step
        if entry["kind"] == "toggle":
            on = entry["choice"] == SPECULATING
        self._last[entry["engine"]] = entry["step"], on

    @property
    def value(self) -> float | None:
        """0 to 1; None before the first decision. Where nothing has been decoded since, what holds now counts."""
        total = sum(self._steps.values())
        if total:
            return self._steps[True] / total
        states = [on for _, on in self._last.values()]
        return sum(states) / len(states) if states else None
