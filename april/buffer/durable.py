"""A buffer on disk: an index and payload files in one folder. What a round changes is there whole after it, or not.

* A round is one transaction: killed at any instruction, the folder holds what the last ``commit`` left.
* The end of each of the last ``KEPT_ROUNDS`` rounds is kept, since the host may save a round when the next one has run.
* Payloads stay on disk: memory holds what is being put or taken.
"""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from april.buffer import database, segments
from april.buffer.codec import SampleCodec
from april.buffer.index import AT, HELD, Entry, Index, Round
from april.core import Group
from april.errors import AprilError
from april.telemetry.events import emit

logger = logging.getLogger(__name__)

KEPT_ROUNDS = 3


class DurableBuffer:
    """Groups that wait for a later round, each one put is taken once. Opened at the end of the last round committed.

    Beyond ``max_bytes`` of payload, what comes last in priority starts again from its prompt: unfinished groups first,
    then finished surplus. ``restarted`` counts these groups, ``wasted_tokens`` the response tokens thrown away.

    Raises AprilError where ``folder`` holds something else, is damaged, or is in use by another process.
    """

    def __init__(self, folder: Path, codec: SampleCodec, max_response_len: int, max_bytes: int | None = None) -> None:
        self.folder = folder
        self.restarted = self.wasted_tokens = 0
        self._codec = codec
        self._max_bytes = max_bytes
        self._path = folder / database.FILE
        with database.faults(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._db = database.connect(self._path)
            self._index = Index(self._db, max_response_len)
            segments.sweep(folder, set(self._index.segments()))
            segments.sync_folder(folder)
            self._writer = segments.Writer(folder)
            self._begin()

    def _begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._generation = self._index.last_generation() + 1
        self._count, self._bytes = self._index.totals()

    def put(self, groups: Sequence[Group]) -> None:
        """Keep these groups. Raises AprilError for one that is held already."""
        with database.faults(self._path):
            for group in groups:
                self._add(group)
            self._bound()

    def _add(self, group: Group) -> None:
        entry = Entry.of(group, self._writer.append(self._codec.encode(group), self._generation))
        try:
            self._index.insert([entry], self._generation)
        except sqlite3.IntegrityError:
            raise AprilError(f"group {group.index} is in the buffer already") from None
        self._held(+1, [entry])

    def take(self, count: int) -> list[Group]:
        """Remove and return up to ``count`` groups, in order of ``april.core.priority``."""
        with database.faults(self._path):
            entries = list(self._index.entries(limit=count))
            groups = [self._read(entry) for entry in entries]
            self._drop(entries)
        return groups

    def _drop(self, entries: Sequence[Entry]) -> None:
        self._index.remove(entries, self._generation)
        self._held(-1, entries)

    def _held(self, sign: int, entries: Sequence[Entry]) -> None:
        self._count += sign * len(entries)
        self._bytes += sign * sum(entry.place.size for entry in entries)

    def _read(self, entry: Entry) -> Group:
        return self._codec.decode(segments.read(self.folder, entry.place))

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """Bytes of the payloads held."""
        return self._bytes

    def snapshot(self) -> list[Group]:
        """All groups held, in order of priority; they stay. Reads every payload."""
        with database.faults(self._path):
            return [self._read(entry) for entry in self._index.entries()]

    def restore(self, groups: Sequence[Group]) -> None:
        """Hold exactly these groups."""
        with database.faults(self._path):
            self._clear()
        self.put(groups)

    def _clear(self) -> None:
        self._index.clear(self._generation)
        self._count = self._bytes = 0

    def _bound(self) -> None:
        """Keep to ``max_bytes``: no prompt is lost, but tokens are."""
        if self._max_bytes is None or self._bytes <= self._max_bytes:
            return
        before = self.restarted, self.wasted_tokens
        while self._bytes > self._max_bytes and (entry := self._index.least()) is not None:
            group = self._codec.restart(self._read(entry))
            self._drop([entry])
            self._add(group)
            self.restarted += 1
            self.wasted_tokens += entry.tokens
        logger.warning(
            "the buffer is full (--april-buffer-max-gb): %d groups start again from their prompts, %d tokens lost; "
            "it holds %d groups in %.3f GB",
            *(self.restarted - before[0], self.wasted_tokens - before[1], self._count, self._bytes / 1e9),
        )
        emit("buffer_full", groups=self.restarted - before[0], wasted_tokens=self.wasted_tokens - before[1])

    # Rounds

    def commit(self, rollout_id: int | None, state: dict[str, Any]) -> None:
        """The round is over: have all of it on disk, with ``state`` (JSON) beside it. Earlier rounds move out."""
        with database.faults(self._path):
            self._compact()
            self._writer.seal()
            self._index.add_round(Round(rollout_id, self._generation, state), KEPT_ROUNDS)
            self._db.execute("COMMIT")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            segments.sweep(self.folder, set(self._index.segments()))
            self._begin()

    def _compact(self) -> None:
        """Write anew what older segments hold, where that is less than half of them."""
        for name, live in self._index.segments(HELD).items():
            if name in self._writer.names or 2 * live >= (self.folder / name).stat().st_size:
                continue
            for entry in list(self._index.entries(f"{HELD} AND segment = :segment", segment=name)):
                place = self._writer.append(segments.read(self.folder, entry.place), self._generation)
                self._index.remove([entry], self._generation)
                self._index.insert([dataclasses.replace(entry, place=place)], self._generation)

    def state_at(self, rollout_id: int | None) -> dict[str, Any] | None:
        """The state beside a round that is kept, else None."""
        with database.faults(self._path):
            end = self._index.round(rollout_id)
            return None if end is None else end.state

    def roll_back(self, rollout_id: int | None) -> None:
        """Hold what was held at the end of a round that is kept."""
        with database.faults(self._path):
            self._index.roll_back(self._kept(rollout_id).generation)
            self._count, self._bytes = self._index.totals()
            self._bound()

    def _kept(self, rollout_id: int | None) -> Round:
        end = self._index.round(rollout_id)
        if end is None:
            raise AprilError(f"round {rollout_id} is not kept in {self.folder}: the last {KEPT_ROUNDS} are")
        return end

    # Checkpoints

    def save(self, rollout_id: int | None, folder: Path) -> dict[str, Any]:
        """Make ``folder`` a copy of the buffer at the end of a round that is kept; returns the round's state.

        The copy needs nothing outside its folder, though its payloads share their disk space with this one's where the
        file system can. One that is there already is replaced at once.
        """
        with database.faults(folder):
            end = self._kept(rollout_id)
            folder.mkdir(parents=True, exist_ok=True)
            ends = self._index.ends(AT, at=end.generation)
            segments.link(self.folder, folder, ends)
            database.write(folder / database.FILE, self._index, end)
            segments.sweep(folder, set(ends))
            segments.sync_folder(folder.parent)
            return end.state

    def load(self, folder: Path) -> None:
        """Hold what a copy made by ``save`` holds; the copy stays as it is."""
        with database.copied(folder / database.FILE) as index, database.faults(self._path):
            segments.link(folder, self.folder, index.ends(HELD))
            self._clear()
            self._index.forget_rounds()
            self._index.insert(index.entries(), self._generation)
            self._count, self._bytes = self._index.totals()
            self._bound()

    def close(self) -> None:
        """Let go of the folder; what was not committed is gone, as after a crash."""
        self._writer.abandon()
        self._db.close()
