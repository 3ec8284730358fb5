"""The decision log, and what it says of a moment."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from april.errors import UsageError
from specrollout.roofline.decisions import DecisionLog, at_moment, explain, parse_moment, read_decisions


def log_of(path: Path) -> Path:
    with path.open("w") as file:
        log = DecisionLog(file, every=10)
        for step in range(25):
            state = "plain" if step < 12 else "speculating"
            log.record(
                100.0 + step, "0", step, "toggle", state, f"because {step}", {"batch": 64 - step, "speedup": 1.0}
            )
        log.record(101.0, "1", 1, "gamma", 7, "tokens per second", {"accepted": 5.25})
    return path


def test_changes_and_every_tenth_are_written(tmp_path: Path) -> None:
    entries = read_decisions(log_of(tmp_path / "log"))
    assert [e["step"] for e in entries if e["kind"] == "toggle"] == [0, 10, 12, 22]


def test_a_moment(tmp_path: Path) -> None:
    entries = read_decisions(log_of(tmp_path / "log"))
    assert [(e["engine"], e["choice"]) for e in at_moment(entries, 111.5)] == [("0", "plain"), ("1", 7)]
    assert [(e["engine"], e["choice"]) for e in at_moment(entries, 112.0)] == [("0", "speculating"), ("1", 7)]
    assert at_moment(entries, 99.0) == []
    said = explain(at_moment(entries, 123.5)[0], 123.5)
    assert said == (
        "engine 0: speculating for 11.5 s; last logged 1.5 s before, at step 22\n  because 22 (batch 42, speedup 1)"
    )
    assert explain(at_moment(entries, 123.5)[1], 123.5).startswith("engine 1: gamma 7 for 22.5 s;")


def test_a_draft_length_of_one_is_no_state() -> None:
    entry = {"time_s": 1.0, "engine": "0", "step": 1, "kind": "gamma", "choice": 1, "reason": "r", "inputs": {}}
    assert "gamma 1 for" in explain(entry, 2.0)


def test_a_line_cut_short_and_a_damaged_one(tmp_path: Path) -> None:
    path = log_of(tmp_path / "log")
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[0][:40])
    assert read_decisions(path) == read_decisions(log_of(tmp_path / "other"))
    path.write_text("{}\n" + whole)
    with pytest.raises(UsageError, match="line 1"):
        read_decisions(path)


@pytest.mark.parametrize("content", [None, "", "{}"])
def test_no_log(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "log").write_text(content)
    with pytest.raises(UsageError, match="decision log"):
        read_decisions(tmp_path / "log")


def test_moments() -> None:
    assert parse_moment("12.5") == 12.5
    assert parse_moment("1970-01-01T00:01:00+00:00") == 60.0
    for wrong in ("", "noon", "nan", "inf"):
        with pytest.raises(UsageError, match="no moment"):
            parse_moment(wrong)


def test_every_entry_is_on_disk_at_once() -> None:
    file = io.StringIO()
    DecisionLog(file).record(1.0, "0", 1, "toggle", "plain", "r", {"batch": 1})
    assert json.loads(file.getvalue())["since_s"] == 1.0
