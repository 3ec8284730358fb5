"""Events of a run: one JSON object a line in ``$APRIL_RUN_DIR/events.jsonl``, appended by every process of the run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

RUN_DIR = "APRIL_RUN_DIR"
FILE = "events.jsonl"


def emit(event: str, **fields: Any) -> None:
    """Append an event with the time (unix s). Does nothing outside a run (``APRIL_RUN_DIR`` unset)."""
    append(FILE, {"time": time.time(), "event": event, **fields})


def append(name: str, record: dict[str, Any]) -> None:
    """Append one line to a file of the run directory.

    One write of a whole line to a file opened for appending: lines of several processes do not mix.
    """
    folder = os.environ.get(RUN_DIR)
    if not folder:
        return
    line = json.dumps(record, default=plain, separators=(",", ":")) + "\n"
    handle = os.open(Path(folder) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def plain(value: Any) -> Any:
    """A value that JSON does not know: numbers of numpy and torch as numbers, the rest as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def read(path: str | os.PathLike[str], event: str | None = None) -> list[dict[str, Any]]:
    """The events of a file, or of one kind only. A last line cut off by a crash is left out."""
    with open(path, encoding="utf-8") as file:
        lines = file.readlines()
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in records if event is None or record["event"] == event]
