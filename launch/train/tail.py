"""The lines of a file that grows, once each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Tail:
    """Reads the JSON objects that were appended since the last look; a line that is still being written waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        """Empty where there is no file yet."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
