"""What was decided, with its inputs, one JSON object a line; and what it was at a moment.

An entry is written when a decision changes, and every `every` decisions in between, so that the log says of each
moment what held and why. Entries: time_s, engine, step, kind ("toggle" or "gamma"), choice, reason, since_s (when this
choice began), inputs.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from april.errors import UsageError

EVERY = 100


@dataclass(slots=True)
class DecisionLog:
    """Writes the decisions of one process to a file that it appends to."""

    file: TextIO
    every: int = EVERY
    _choice: dict[tuple[str, str], tuple[Any, float, int]] = field(default_factory=dict)

    def record(
        self, time_s: float, engine: str, step: int, kind: str, choice: Any, reason: str, inputs: dict[str, Any]
    ) -> None:
        """Record a decision; it reaches the file when it differs from the last of its kind and engine, or is due."""
        last, since_s, count = self._choice.get((engine, kind), (None, time_s, 0))
        changed = last != choice
        since_s, count = (time_s, 0) if changed else (since_s, count + 1)
        self._choice[engine, kind] = (choice, since_s, count)
        if changed or count % self.every == 0:
            entry = {"time_s": time_s, "engine": engine, "step": step, "kind": kind, "choice": choice, "reason": reason}
            self.file.write(json.dumps({**entry, "since_s": since_s, "inputs": inputs}) + "\n")
            self.file.flush()


def read_decisions(path: Path) -> list[dict[str, Any]]:
    """The entries by time. A last line that a crash cut short is left out; other damage is an error naming its line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"decision log {path}: {error}") from error
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = _checked(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise UsageError(f"decision log {path}, line {number}: {type(error).__name__} {error}") from error
        entries.append(entry)
    if not entries:
        raise UsageError(f"decision log {path} holds no decision")
    return sorted(entries, key=lambda entry: float(entry["time_s"]))


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(entry["inputs"], dict):
        raise TypeError("inputs are no object")
    needed = {name: entry[name] for name in ("engine", "kind", "choice", "reason")}
    return {**entry, **needed, "time_s": float(entry["time_s"])}


def parse_moment(text: str) -> float:
    """Seconds since the epoch, from a number or from a date and time of ISO 8601."""
    try:
        moment = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise UsageError(f"{text!r} is no moment: seconds as in the log, or 2026-01-31T12:00:00+00:00") from None
    if not math.isfinite(moment):
        raise UsageError(f"{text!r} is no moment")
    return moment


def at_moment(entries: list[dict[str, Any]], moment_s: float) -> list[dict[str, Any]]:
    """Of each engine and kind the last entry up to the moment, ordered by engine and kind."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in entries:
        if entry["time_s"] <= moment_s:
            latest[str(entry["engine"]), str(entry["kind"])] = entry
    return [latest[key] for key in sorted(latest)]


def explain(entry: dict[str, Any], moment_s: float) -> str:
    """One entry as two lines of text."""
    inputs = ", ".join(f"{name} {_short(value)}" for name, value in entry["inputs"].items())
    held_s = moment_s - float(entry.get("since_s", entry["time_s"]))
    age_s = moment_s - float(entry["time_s"])
    choice = f"gamma {entry['choice']}" if entry["kind"] == "gamma" else str(entry["choice"])
    when = f"last logged {age_s:.1f} s before, at step {entry.get('step', '?')}"
    return f"engine {entry['engine']}: {choice} for {held_s:.1f} s; {when}\n  {entry['reason']} ({inputs})"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
