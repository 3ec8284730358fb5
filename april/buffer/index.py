"""The index of a buffer: one row for each group and each change of it, in SQLite.

A *generation* is what one round changed. A row is there from generation ``added`` until before generation ``removed``
(null: it is held now), so the buffer as it was at the end of any round that is kept can be read, and nothing is
overwritten. ``rounds`` names the generation at the end of each round that is kept, with the state that belongs to it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from april.buffer.segments import Place
from april.core import Group

# The version of a group without tokens, which comes after all others.
NO_VERSION = 1 << 62

# ``unfinished``: the lengths of the members that still grow; ``rest`` is what they may still get.
SCHEMA = """
CREATE TABLE groups (row INTEGER PRIMARY KEY, idx INTEGER, ended INTEGER, oldest INTEGER, rest INTEGER,
  unfinished TEXT, members INTEGER, tokens INTEGER, segment TEXT, offset INTEGER, size INTEGER, crc INTEGER,
  added INTEGER, removed INTEGER);
CREATE TABLE rounds (rollout_id INTEGER PRIMARY KEY, generation INTEGER, state TEXT);
CREATE UNIQUE INDEX held ON groups (idx) WHERE removed IS NULL;
CREATE INDEX priority ON groups (ended DESC, oldest, rest, idx) WHERE removed IS NULL;
CREATE INDEX gone ON groups (removed) WHERE removed IS NOT NULL;
CREATE INDEX payloads ON groups (segment, removed, size);
"""
COLUMNS = "idx, ended, oldest, unfinished, members, tokens, segment, offset, size, crc"
ORDER = "ORDER BY ended DESC, oldest, rest, idx"
HELD = "removed IS NULL"
AT = "added <= :at AND (removed IS NULL OR removed > :at)"


@dataclass(frozen=True, slots=True)
class Entry:
    """A group as the index knows it; ``ended``: it is finished surplus. ``row`` is its number in the index read."""

    index: int
    ended: bool
    oldest: int | None
    unfinished: tuple[int, ...]
    members: int
    tokens: int
    place: Place
    row: int = 0

    @classmethod
    def of(cls, group: Group, place: Place) -> Entry:
        """The entry of a group whose payload lies at ``place``."""
        unfinished = tuple(member.length for member in group.members if not member.has_ended)
        return cls(
            group.index, group.finished, group.oldest_version, unfinished, len(group.members), group.tokens, place
        )

    def rest(self, max_response_len: int) -> int:
        """As in ``april.core.priority``."""
        return sum(max(0, max_response_len - length) for length in self.unfinished)


@dataclass(frozen=True, slots=True)
class Round:
    """The end of a round: its generation, and the state beside the groups."""

    rollout_id: int | None
    generation: int
    state: dict[str, Any]


class Index:
    """Queries over an open index. Nothing is committed before ``commit``."""

    def __init__(self, db: sqlite3.Connection, max_response_len: int = 0) -> None:
        self.db = db
        self.max_response_len = max_response_len

    def insert(self, entries: Iterable[Entry], generation: int) -> None:
        """Hold these from ``generation`` on. Raises sqlite3.IntegrityError for a group that is held already."""
        values = "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"
        self.db.executemany(
            f"INSERT INTO groups ({COLUMNS}, rest, added) VALUES ({values})",
            (_values(entry, entry.rest(self.max_response_len), generation) for entry in entries),
        )

    def remove(self, entries: Iterable[Entry], generation: int) -> None:
        """Hold these no longer from ``generation`` on."""
        rows = [(generation, entry.row) for entry in entries]
        # What was added in this same generation was never part of any other.
        self.db.executemany("DELETE FROM groups WHERE added = ? AND row = ?", rows)
        self.db.executemany("UPDATE groups SET removed = ? WHERE row = ?", rows)

    def clear(self, generation: int) -> None:
        """Hold nothing from ``generation`` on."""
        self.db.execute(f"DELETE FROM groups WHERE {HELD} AND added = ?", (generation,))
        self.db.execute(f"UPDATE groups SET removed = ? WHERE {HELD}", (generation,))

    def entries(self, where: str = HELD, limit: int = -1, **values: Any) -> Iterator[Entry]:
        """Groups, in order of priority. Not to be changed while iterating."""
        found = self.db.execute(
            f"SELECT {COLUMNS}, row FROM groups WHERE {where} {ORDER} LIMIT :limit", {"limit": limit, **values}
        )
        return map(_entry, found)

    def least(self) -> Entry | None:
        """What the bound on size lets go of next: the last in priority that holds tokens, unfinished ones first."""
        for ended in (0, 1):
            found = self.db.execute(
                f"SELECT {COLUMNS}, row FROM groups WHERE {HELD} AND ended = ? AND oldest < ? "
                "ORDER BY oldest DESC, rest DESC, idx DESC LIMIT 1",
                (ended, NO_VERSION),
            ).fetchone()
            if found is not None:
                return _entry(found)
        return None

    def totals(self) -> tuple[int, int]:
        """Groups held, and the bytes of their payloads."""
        count, size = self.db.execute(f"SELECT COUNT(*), TOTAL(size) FROM groups WHERE {HELD}").fetchone()
        return count, int(size)

    def segments(self, where: str = "TRUE", **values: Any) -> dict[str, int]:
        """Segments that groups refer to, with the bytes of those that are ``where``."""
        found = self.db.execute(f"SELECT segment, SUM(size) FROM groups WHERE {where} GROUP BY segment", values)
        return dict(found.fetchall())

    def ends(self, where: str, **values: Any) -> dict[str, int]:
        """Segments that groups refer to, with the least size that each must have."""
        found = self.db.execute(
            f"SELECT segment, MAX(offset + size) FROM groups WHERE {where} GROUP BY segment", values
        )
        return dict(found.fetchall())

    def rounds(self) -> list[Round]:
        """The rounds that are kept, oldest first."""
        found = self.db.execute("SELECT rollout_id, generation, state FROM rounds ORDER BY generation")
        return [Round(rollout_id, generation, json.loads(state)) for rollout_id, generation, state in found]

    def round(self, rollout_id: int | None) -> Round | None:
        """The end of one round, if it is kept."""
        return next((found for found in self.rounds() if found.rollout_id == rollout_id), None)

    def add_round(self, end: Round, keep: int) -> None:
        """Note the end of a round, and keep the last ``keep`` only. Rounds that it is done anew for are forgotten."""
        self.db.execute("DELETE FROM rounds WHERE rollout_id >= ?", (end.rollout_id,))
        self.db.execute("INSERT INTO rounds VALUES (?, ?, ?)", (end.rollout_id, end.generation, json.dumps(end.state)))
        for old in self.rounds()[:-keep]:
            self.db.execute("DELETE FROM rounds WHERE generation = ?", (old.generation,))
        self.db.execute("DELETE FROM groups WHERE removed <= (SELECT MIN(generation) FROM rounds)")

    def forget_rounds(self) -> None:
        """Keep no round: what is held now has another history."""
        self.db.execute("DELETE FROM rounds")

    def roll_back(self, generation: int) -> None:
        """Hold what was held at the end of ``generation``; later rounds are forgotten."""
        self.db.execute("DELETE FROM rounds WHERE generation > ?", (generation,))
        self.db.execute("DELETE FROM groups WHERE added > ?", (generation,))
        self.db.execute("UPDATE groups SET removed = NULL WHERE removed > ?", (generation,))

    def last_generation(self) -> int:
        """The newest generation of any row."""
        columns = "SELECT MAX(added) AS g FROM groups UNION ALL SELECT MAX(removed) FROM groups"
        found = self.db.execute(f"SELECT MAX(g) FROM ({columns} UNION ALL SELECT MAX(generation) FROM rounds)")
        return int(found.fetchone()[0] or 0)


def _values(entry: Entry, rest: int, generation: int) -> tuple[Any, ...]:
    place = entry.place
    oldest = NO_VERSION if entry.oldest is None else entry.oldest
    unfinished = ",".join(map(str, entry.unfinished))
    head = (entry.index, int(entry.ended), oldest, unfinished, entry.members, entry.tokens)
    return (*head, place.segment, place.offset, place.size, place.crc, rest, generation)


def _entry(found: tuple[Any, ...]) -> Entry:
    index, ended, oldest, unfinished, members, tokens, segment, offset, size, crc, row = found
    lengths = tuple(map(int, unfinished.split(","))) if unfinished else ()
    place = Place(segment, offset, size, crc)
    return Entry(index, bool(ended), None if oldest == NO_VERSION else oldest, lengths, members, tokens, place, row)
