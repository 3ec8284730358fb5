"""The file of an index: opening it for a run, reading it beside one, and saying in one line what is wrong with it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from april.buffer import segments
from april.buffer.index import AT, SCHEMA, Index, Round
from april.errors import AprilError

FILE = "index.sqlite"
APPLICATION = 0x4150524C
FORMAT_VERSION = 2


def connect(path: Path) -> sqlite3.Connection:
    """Open an index, made where there is none, for this process alone. Raises AprilError for one that is not ours.

    Alone, because SQLite's shared memory does not work on network file systems, and two runs in one buffer never do.
    """
    # A copy is looked at first: opening a file for writing may change it. A journal, before there is a log, is a crash
    # while the file was made, and takes all of it back.
    if path.exists() and path.stat().st_size and not Path(f"{path}-journal").exists():
        with copied(path):
            pass
    db = sqlite3.connect(path, timeout=2.0, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN IMMEDIATE")
        if db.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0] == 0:
            create(db)
        check(db, path)
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL")
        # One commit a round, which waits for the disk; between two of them the file itself is not touched.
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        return db
    except BaseException:
        db.close()
        raise


def create(db: sqlite3.Connection) -> None:
    """Make the tables."""
    for statement in SCHEMA.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def check(db: sqlite3.Connection, path: Path) -> None:
    """Raises AprilError for a database that is damaged, or of another program or version."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise AprilError(f"{path} is no buffer of ours; it was left as it is")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT_VERSION:
        raise AprilError(f"{path} has format {version}, this version reads {FORMAT_VERSION}; it was left as it is")
    fault = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if fault != "ok":
        raise AprilError(f"{path} is damaged ({' '.join(fault.split())}); it was left as it is")


def write(path: Path, source: Index, end: Round) -> None:
    """Write an index with what ``source`` held at the end of a round; whole on disk on return, or not there."""
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)
    try:
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as db:
            # A crash leaves a draft that nobody reads.
            db.execute("PRAGMA journal_mode = OFF")
            db.execute("PRAGMA synchronous = OFF")
            db.execute("BEGIN")
            create(db)
            index = Index(db, source.max_response_len)
            index.insert(source.entries(AT, at=end.generation), generation=1)
            index.add_round(dataclasses.replace(end, generation=1), keep=1)
            db.execute("COMMIT")
        segments.sync_file(draft)
        os.replace(draft, path)
        segments.sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def copied(path: Path) -> Iterator[Index]:
    """A copy of an index, so that reading changes nothing and needs no lock: the original may belong to a run.

    Raises AprilError for a file that is damaged or not ours.
    """
    with tempfile.TemporaryDirectory(prefix="april-") as folder:
        copy = Path(folder) / FILE
        _copy_unchanged(path, copy)
        with faults(path), contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as db:
            check(db, path)
            yield Index(db)


def _copy_unchanged(path: Path, copy: Path) -> None:
    """Copy an index and its log; again where the end of a round came in between, which alone writes to the index."""
    for _ in range(20):
        before = os.stat(path)
        shutil.copyfile(path, copy)
        log = Path(f"{copy}-wal")
        log.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(f"{path}-wal", log)
        after = os.stat(path)
        if (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino):
            return
    raise AprilError(f"{path} keeps changing: try again")


@contextlib.contextmanager
def faults(path: Path) -> Iterator[None]:
    """Inside the context, what SQLite and the system say is an AprilError about ``path``."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise AprilError(f"{path}: {error}") from error
        raise AprilError(f"{path} is in use by another run; end that, or give another --april-buffer-dir") from error
    except sqlite3.DatabaseError as error:
        raise AprilError(f"{path} is damaged or no buffer of ours ({error}); it was left as it is") from error
    except OSError as error:
        raise AprilError(f"{error.filename or path}: {error.strerror}") from error
