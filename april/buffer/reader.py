"""Looking at a buffer without changing it: the one of a run (as it was at its last round's end), or a checkpoint's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.buffer import codec, database, segments
from april.buffer.index import Entry, Index, Round
from april.errors import AprilError, UsageError


@dataclass(frozen=True, slots=True)
class Reader:
    """An open buffer: ``index`` for its groups and rounds."""

    folder: Path
    index: Index

    def members(self, entry: Entry) -> list[dict[str, Any]]:
        """The samples of a group as dictionaries, a fan-out's one after the other.

        Raises AprilError where the payload is damaged or needs classes that cannot be imported here.
        """
        data = segments.read(self.folder, entry.place)
        try:
            return list(_flat(codec.fields(data)))
        except (ImportError, AttributeError) as error:
            raise AprilError(f"group {entry.index} needs its host to be read ({error}): set PYTHONPATH") from error

    def last_round(self) -> Round | None:
        """The newest round that is kept."""
        rounds = self.index.rounds()
        return rounds[-1] if rounds else None

    def faults(self) -> list[str]:
        """Everything that is wrong: reads every payload, those of earlier rounds that are kept included."""
        found = [f"the index: {row[0]}" for row in self.index.db.execute("PRAGMA integrity_check") if row[0] != "ok"]
        for entry in self.index.entries("TRUE"):
            try:
                segments.read(self.folder, entry.place)
            except AprilError as error:
                found.append(f"group {entry.index}: {error}")
        return found


def _flat(members: Any) -> Iterator[dict[str, Any]]:
    for member in members:
        if isinstance(member, list):
            yield from _flat(member)
        else:
            yield member


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Reader]:
    """Open the buffer in ``folder``.

    Raises UsageError where there is none, AprilError where it is damaged or not ours.
    """
    path = folder / database.FILE
    if not path.is_file():
        raise UsageError(f"{folder} holds no buffer: there is no {database.FILE} in it")
    with database.copied(path) as index:
        yield Reader(folder, index)


def state(folder: Path) -> dict[str, Any]:
    """What a checkpoint keeps beside its groups."""
    with opened(folder) as found:
        last = found.last_round()
    if last is None:
        raise AprilError(f"{folder} holds no round that ended; it was left as it is")
    return last.state
