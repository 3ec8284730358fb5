"""Payload files (segments): appended to during one round, synced at its end, never written again.

Names are unique over all buffers, so that equal names mean equal contents and segments can be linked from folder to
folder.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from april.errors import AprilError

NAME = re.compile(r"g\d{6,}-[0-9a-f]{12}\.seg")
DRAFT = re.compile(r"(index|g\d{6,}-[0-9a-f]{12})\.\d+\.tmp")
MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a payload lies; ``crc`` is its CRC-32."""

    segment: str
    offset: int
    size: int
    crc: int


class Writer:
    """Appends payloads to segments of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle: int | None = None
        self._name = ""
        self._offset = 0
        self.names: set[str] = set()

    def append(self, data: bytes, generation: int) -> Place:
        """Write a payload. It is on disk after ``seal``."""
        if self._handle is None or self._offset >= MAX_BYTES:
            self._open(generation)
        assert self._handle is not None
        place = Place(self._name, self._offset, len(data), zlib.crc32(data))
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._handle, rest) :]
        self._offset += len(data)
        return place

    def _open(self, generation: int) -> None:
        self._close()
        self._name, self._offset = f"g{generation:06d}-{uuid.uuid4().hex[:12]}.seg", 0
        self._handle = os.open(self._folder / self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self.names.add(self._name)

    def _close(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def seal(self) -> None:
        """Sync what was written to disk; what comes next goes to a new segment."""
        self._close()
        sync_folder(self._folder)
        self.names = set()

    def abandon(self) -> None:
        """Close without syncing: what was written is not wanted."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def read(folder: Path, place: Place) -> bytes:
    """A payload. Raises AprilError where it is not what was written."""
    path = folder / place.segment
    try:
        with open(path, "rb") as file:
            data = os.pread(file.fileno(), place.size, place.offset)
    except FileNotFoundError:
        raise AprilError(f"{path} is missing; the rest was left as it is") from None
    if len(data) != place.size or zlib.crc32(data) != place.crc:
        raise AprilError(f"{path} is damaged at byte {place.offset}; it was left as it is")
    return data


def link(source: Path, target: Path, ends: Mapping[str, int]) -> None:
    """Have these segments in ``target`` too: linked where the file system can, else copied; on disk on return.

    ``ends``: the size that each must have at least. Raises AprilError for one that is missing or cut off.
    """
    for name, end in ends.items():
        path = source / name
        if not path.exists() or path.stat().st_size < end:
            raise AprilError(f"{path} is missing or cut off; the rest was left as it is")
        if not (target / name).exists():
            try:
                os.link(path, target / name)
            except OSError:
                _copy(path, target / name)
    sync_folder(target)


def _copy(source: Path, target: Path) -> None:
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        shutil.copyfile(source, draft)
        sync_file(draft)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def sweep(folder: Path, wanted: set[str]) -> None:
    """Remove the segments and drafts of a folder that nothing refers to."""
    for name in os.listdir(folder):
        if (NAME.fullmatch(name) and name not in wanted) or DRAFT.fullmatch(name):
            os.unlink(folder / name)


def sync_file(path: Path) -> None:
    """Have a file's contents on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Have a folder's names on disk."""
    sync_file(folder)
