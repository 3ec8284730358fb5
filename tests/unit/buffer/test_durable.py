"""The buffer on disk: order, rounds, checkpoints, the bound on its size, and what it says of damage."""

from __future__ import annotations

import math
import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fake_buffer import MAX_LEN, ModelBuffer, contents, group, random_group, sample
from fake_data import Sample

from april import samples
from april.buffer import database, durable, reader, segments
from april.buffer.codec import SampleCodec, pack
from april.buffer.durable import DurableBuffer
from april.errors import AprilError, UsageError
from april.telemetry import events


def opened(folder: Path, **options: Any) -> DurableBuffer:
    return DurableBuffer(folder, SampleCodec(Sample), MAX_LEN, **options)


def filled(folder: Path, count: int = 4) -> DurableBuffer:
    """A buffer with partials 0, 1, ... at the end of round 0."""
    buffer = opened(folder)
    buffer.put([group(index, (20 + index,)) for index in range(count)])
    buffer.commit(0, {"round": 0})
    return buffer


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Values


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1] * 20, "b"),
        ([0, -129, 5], "h"),
        ([0, 150_000], "i"),
        ([0, 2**40], "q"),
        ([0, 2**70], None),
        ([0.5, -0.25, -0.0, math.inf], "f"),
        ([0.1, -0.25], "d"),
        ([math.nan, 0.5], "d"),
        ([1e300], "d"),
        ([True, False], None),
        ([1, 2.0], None),
        (["a"], None),
        ([None], None),
    ],
)
def test_numbers_are_packed_only_without_loss(values: list[Any], kind: str | None) -> None:
    packed = pack(values)
    assert (packed and packed.typecode) == kind
    if packed is not None:
        assert list(map(repr, packed.tolist())) == list(map(repr, values))


def test_everything_a_sample_has_comes_back(tmp_path: Path) -> None:
    made = sample(3, 40, 2, ended=True, label="x", session_id="s", loss_mask=[1, 0] * 20)
    made.metadata["nested"] = {"list": [1.5] * 100, "none": None}
    made.reward = {"score": 0.1}
    fan = [sample(3, 5, 1, ended=True), sample(3, 7, 1, ended=True)]
    samples.note(fan[0], origin=sample(3, 0, 0, ended=False))
    buffer = opened(tmp_path)
    buffer.put([samples.group_of([made, fan])])
    [taken] = buffer.take(1)
    assert samples.payload(taken) == [made, fan]
    assert taken == samples.group_of([made, fan])


# Order


def test_the_order_is_that_of_priority(tmp_path: Path) -> None:
    draw = random.Random(1)
    groups = [random_group(index, draw) for index in range(200)]
    model, buffer = ModelBuffer(), opened(tmp_path)
    model.put(groups)
    buffer.put(groups)
    assert len(buffer) == 200
    assert contents(buffer.snapshot()) == contents(model.snapshot())
    assert contents(buffer.take(50)) == contents(model.take(50))
    assert contents(buffer.take(500)) == contents(model.take(500))
    assert (len(buffer), buffer.bytes) == (0, 0)


def test_a_checkpoint_for_another_response_length_is_ordered_by_that(tmp_path: Path) -> None:
    groups = [group(0, (10, 60)), group(1, (30, 30))]
    buffer = DurableBuffer(tmp_path / "a", SampleCodec(Sample), 64)
    buffer.put(groups)
    buffer.commit(0, {})
    assert [one.index for one in buffer.snapshot()] == [0, 1]
    buffer.save(0, tmp_path / "saved")
    shorter = DurableBuffer(tmp_path / "b", SampleCodec(Sample), 40)
    shorter.load(tmp_path / "saved")
    assert [one.index for one in shorter.snapshot()] == [1, 0]


def test_a_group_is_held_once(tmp_path: Path) -> None:
    buffer = filled(tmp_path)
    with pytest.raises(AprilError, match="group 2 is in the buffer already"):
        buffer.put([group(2)])
    buffer.take(9)
    buffer.put([group(2)])
    assert len(buffer) == 1


# Rounds


def test_what_was_not_committed_is_gone(tmp_path: Path) -> None:
    buffer = filled(tmp_path)
    held = contents(buffer.snapshot())
    buffer.take(2)
    buffer.put([group(7)])
    buffer.close()
    again = opened(tmp_path)
    assert contents(again.snapshot()) == held
    assert len(list(tmp_path.glob("*.seg"))) == 1, "what the round in flight wrote is removed"


def test_the_last_rounds_are_kept(tmp_path: Path) -> None:
    buffer = filled(tmp_path / "live")
    kept = [contents(buffer.snapshot())]
    for number in range(1, 5):
        buffer.take(1)
        buffer.put([group(10 + number)])
        buffer.commit(number, {"round": number})
        kept.append(contents(buffer.snapshot()))
    for number in (2, 3, 4):
        assert buffer.save(number, tmp_path / str(number)) == {"round": number}
        copy = opened(tmp_path / f"from {number}")
        copy.load(tmp_path / str(number))
        assert contents(copy.snapshot()) == kept[number]
    with pytest.raises(AprilError, match=r"round 1 is not kept in .*: the last 3 are"):
        buffer.save(1, tmp_path / "1")
    buffer.roll_back(3)
    assert contents(buffer.snapshot()) == kept[3]
    assert buffer.state_at(4) is None


def test_files_that_nothing_refers_to_go(tmp_path: Path) -> None:
    buffer = filled(tmp_path, count=8)
    for number in range(1, 8):
        buffer.put(buffer.take(8))
        buffer.commit(number, {})
    assert len(list(tmp_path.glob("*.seg"))) == durable.KEPT_ROUNDS


def test_a_file_with_little_left_in_it_is_written_anew(tmp_path: Path) -> None:
    buffer = filled(tmp_path, count=8)
    [first] = tmp_path.glob("*.seg")
    buffer.take(6)
    held = contents(buffer.snapshot())
    for number in range(1, 5):
        buffer.commit(number, {})
    assert not first.exists()
    assert contents(buffer.snapshot()) == held
    assert sum(path.stat().st_size for path in tmp_path.glob("*.seg")) == buffer.bytes


def test_a_large_round_has_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_BYTES", 1000)
    buffer = filled(tmp_path, count=9)
    assert len(list(tmp_path.glob("*.seg"))) > 2
    assert len(buffer.snapshot()) == 9


# Checkpoints


def test_a_checkpoint_stands_alone(tmp_path: Path) -> None:
    """Moved, with the buffer it was made from gone, loaded twice; and never changed."""
    buffer = filled(tmp_path / "live")
    held = contents(buffer.snapshot())
    buffer.save(0, tmp_path / "saved")
    buffer.close()
    shutil.rmtree(tmp_path / "live")
    (tmp_path / "saved").rename(tmp_path / "moved")
    before = files(tmp_path / "moved")
    for name in ("a", "b"):
        copy = opened(tmp_path / name)
        copy.put([group(77)])
        copy.load(tmp_path / "moved")
        assert contents(copy.snapshot()) == held
        copy.take(3)
        copy.commit(1, {})
    assert files(tmp_path / "moved") == before


def test_payloads_are_linked_or_else_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = filled(tmp_path / "live")
    buffer.save(0, tmp_path / "linked")
    [linked] = (tmp_path / "linked").glob("*.seg")
    assert linked.stat().st_nlink == 2

    def refuse(*args: Any) -> None:
        raise OSError("links are not supported")

    monkeypatch.setattr(os, "link", refuse)
    buffer.save(0, tmp_path / "copied")
    [copied] = (tmp_path / "copied").glob("*.seg")
    assert (copied.stat().st_nlink, copied.read_bytes()) == (1, linked.read_bytes())


# The bound


def test_beyond_the_bound_the_last_in_priority_start_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APRIL_RUN_DIR", str(tmp_path))
    buffer = opened(tmp_path / "live", max_bytes=55_000)
    ended = group(9, (3000,), version=5, ended=True)
    buffer.put([group(1, (800,), version=3), group(2, (800,), version=1), ended])
    assert buffer.restarted == 0
    buffer.put([group(3, (900,), version=2), group(4, (800,), version=1)])
    assert buffer.bytes <= 55_000
    assert [(one.index, one.tokens) for one in buffer.snapshot()] == [(9, 3000), (2, 800), (4, 800), (1, 0), (3, 0)]
    assert (buffer.restarted, buffer.wasted_tokens) == (2, 1700)
    assert "(--april-buffer-max-gb): 2 groups start again from their prompts, 1700 tokens lost" in caplog.text
    [event] = events.read(tmp_path / events.FILE, "buffer_full")
    assert (event["groups"], event["wasted_tokens"]) == (2, 1700)


def test_a_bound_below_the_prompts_keeps_them_all(tmp_path: Path) -> None:
    buffer = opened(tmp_path, max_bytes=1)
    buffer.put([group(1), group(2, ended=True), group(3, (0,))])
    assert [one.fresh for one in buffer.snapshot()] == [True] * 3
    assert (buffer.restarted, buffer.wasted_tokens) == (2, 40)


# Damage


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
