"""The buffer on disk: order, rounds, checkpoints, and the bound on its size."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_buffer import ModelBuffer, contents, files, filled, group, opened, random_group
from fake_data import Sample

from april.buffer import durable, segments
from april.buffer.codec import SampleCodec
from april.buffer.durable import DurableBuffer
from april.errors import AprilError
from april.telemetry import events

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


def test_rounds_of_another_history_are_forgotten(tmp_path: Path) -> None:
    """A run that starts anew in an old folder, or from another checkpoint."""
    buffer = filled(tmp_path / "live")
    buffer.commit(1, {})
    buffer.save(1, tmp_path / "saved")
    buffer.restore([])
    buffer.commit(0, {"round": "new"})
    assert (buffer.state_at(0), buffer.state_at(1)) == ({"round": "new"}, None)
    buffer.load(tmp_path / "saved")
    assert buffer.state_at(0) is None


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
