"""What the buffer says of files that are damaged, foreign or in use: one clear error, and they stay as they were."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fake_buffer import contents, files, filled, group, opened

from april.buffer import database, reader
from april.errors import AprilError, UsageError


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"x" * 5000])
def test_a_foreign_index_is_one_clear_error_and_stays(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index.sqlite").write_bytes(content)
    for use in (lambda: opened(tmp_path), lambda: reader.state(tmp_path)):
        with pytest.raises(AprilError, match=r"index.sqlite is damaged or no buffer of ours \(.*\); it was left"):
            use()
    assert files(tmp_path) == {"index.sqlite": content}


def test_a_database_of_another_program_stays(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "index.sqlite")
    db.execute("CREATE TABLE theirs (x)")
    db.commit()
    db.close()
    before = files(tmp_path)
    with pytest.raises(AprilError, match="is no buffer of ours; it was left as it is"):
        opened(tmp_path)
    assert files(tmp_path) == before


def test_a_database_of_another_program_keeps_its_log(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "theirs")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE theirs (x)")
    place = tmp_path / "buffer"
    place.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{tmp_path / 'theirs'}{suffix}", f"{place / 'index.sqlite'}{suffix}")
    db.close()
    before = files(place)
    assert before["index.sqlite-wal"]
    with pytest.raises(AprilError, match="is no buffer of ours; it was left as it is"):
        opened(place)
    assert files(place) == before


def test_a_later_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "FORMAT_VERSION", 3)
    filled(tmp_path).close()
    monkeypatch.undo()
    with pytest.raises(AprilError, match="has format 3, this version reads 2; it was left as it is"):
        opened(tmp_path)


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_an_index_that_is_cut_off(tmp_path: Path, keep: float) -> None:
    filled(tmp_path, count=400).close()
    path = tmp_path / "index.sqlite"
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    before = files(tmp_path)
    with pytest.raises(AprilError, match=r"index\.sqlite is damaged"):
        opened(tmp_path)
    assert files(tmp_path) == before


def test_a_damaged_payload_is_found_when_it_is_read(tmp_path: Path) -> None:
    buffer = filled(tmp_path)
    [path] = tmp_path.glob("*.seg")
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with reader.opened(tmp_path) as found:
        assert found.faults() == [f"group 0: {path} is damaged at byte 0; it was left as it is"]
    with pytest.raises(AprilError, match="is damaged at byte 0"):
        buffer.take(9)
    assert len(buffer) == 4, "nothing was taken"


def test_a_payload_file_that_is_cut_off_or_missing(tmp_path: Path) -> None:
    buffer = filled(tmp_path / "live")
    buffer.save(0, tmp_path / "saved")
    [path] = (tmp_path / "saved").glob("*.seg")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1])
    with pytest.raises(AprilError, match=r"seg is missing or cut off; the rest was left as it is"):
        opened(tmp_path / "other").load(tmp_path / "saved")
    path.unlink()
    with reader.opened(tmp_path / "saved") as found:
        assert len(found.faults()) == 4


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    buffer = filled(tmp_path)
    with pytest.raises(AprilError, match=r"index.sqlite is in use by another run; end that, or give another --april-"):
        opened(tmp_path)
    buffer.close()
    assert len(opened(tmp_path)) == 4


def test_a_run_can_be_looked_at_while_it_goes_on(tmp_path: Path) -> None:
    """It shows the end of the last round, whatever the one in flight does."""
    buffer = filled(tmp_path)
    buffer.take(3)
    with reader.opened(tmp_path) as found:
        assert [entry.index for entry in found.index.entries()] == [3, 2, 1, 0]
        assert found.faults() == []
    buffer.commit(1, {})
    with reader.opened(tmp_path) as found:
        assert [entry.index for entry in found.index.entries()] == [0]


def test_where_there_is_no_buffer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no buffer: there is no index.sqlite in it"), reader.opened(tmp_path):
        pass
    opened(tmp_path).close()
    with pytest.raises(AprilError, match="holds no round that ended"):
        reader.state(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AprilError, match=r"file/live: Not a directory"):
        opened(tmp_path / "file" / "live")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = filled(tmp_path)
    held = contents(buffer.snapshot())

    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(AprilError, match=r"index.sqlite: No space left on device"):
        buffer.put([group(9)])
    monkeypatch.undo()
    buffer.close()
    assert contents(opened(tmp_path).snapshot()) == held
