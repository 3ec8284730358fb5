"""The report of a run, from files as a run leaves them: its figures, lines and picture, and no failure of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from april.launch.train import measures, report
from april.launch.train.tail import Tail


def rounds(count: int) -> list[dict[str, Any]]:
    """Rollouts of 2 s, one each 10 s, from 100 s; each trains 40 tokens, all but those of the first half off-policy."""
    made = []
    for step in range(count):
        start = 100.0 + 10 * step
        span = {"group": step, "sample": 0, "start": start, "end": start + 2, "tokens": 60, "outcome": "partial"}
        made.append(
            {
                "time": start + 2,
                "event": "round",
                "started": start,
                "ended": start + 2,
                "trained_tokens": 40,
                "generated_tokens": 60,
                "wasted_tokens": 1,
                "off_policy_tokens": 20 if step else 0,
                "max_lag": min(step, 3),
                "partials_resumed": 5 if step else 0,
                "reward_mean": step / 4,
                "spans": [span],
            }
        )
    return made


def lines_of(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    buffer = {"time": 112.5, "event": "buffer_full", "groups": 1, "wasted_tokens": 100}
    ended = {"time": 131.0, "event": "finished"}
    (tmp_path / "events.jsonl").write_text(lines_of({"time": 90.0, "event": "started"}, *rounds(3), buffer, ended))
    trained = [{"time": 106.0 + 10 * step, "step_key": "train/step", "train/step": step} for step in range(3)]
    taus = [{"time": 103.0, "step_key": "rollout/step", report.TAU: tau} for tau in (2.0, 3.0)]
    (tmp_path / "metrics.jsonl").write_text(lines_of(*trained, *taus))
    return tmp_path


def test_the_figures_of_a_run(run_dir: Path) -> None:
    made = report.read(run_dir)
    assert made is not None
    assert made.figures() == {
        "finished": True,
        "steps": 3,
        "total_s": 41.0,
        "first_rollout_s": 12.0,
        "step_s": 10.0,
        "rollout_s": 2.0,
        "trained_tokens": 120,
        "trained_tok_s": 120 / 26,
        "rollout_tok_s": 30.0,
        "max_lag": 2,
        "off_policy_share": 1 / 3,
        "wasted_tokens": 103,
        "partials_resumed": 10,
        "reward_first": 0.0,
        "reward_last": 0.5,
        "tau": 2.5,
        "sd_share": None,
        "memory": {},
    }


def test_it_is_written_printed_and_drawn(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.write(run_dir)
    assert json.loads((run_dir / "summary.json").read_text())["steps"] == 3
    assert (run_dir / "run.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    assert "3 steps in 41 s, first rollout done after 12 s: 10.00 s a step, 2.00 s a rollout" in said[0]
    assert "lag up to 2 versions, 33% of the trained tokens off-policy, 10 partials resumed" in said[1]
    assert said[2] == "april: speculation: tau 2.50"


def test_a_run_that_was_ended_within_a_step_is_reported_too(run_dir: Path) -> None:
    whole = (run_dir / "events.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "events.jsonl").write_text("".join(whole[:2]) + whole[2][:50])
    (run_dir / "metrics.jsonl").unlink()
    made = report.read(run_dir)
    assert made is not None
    assert (made.finished, made.steps, made.step_s) == (False, 1, 2.0)
    assert "(not finished)" in report.lines(made)[0]


def test_a_run_that_never_generated_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.write(tmp_path)
    (tmp_path / "events.jsonl").write_text(lines_of({"time": 1.0, "event": "started"}))
    report.write(tmp_path)
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "summary.json").exists()


def test_what_goes_wrong_is_a_line(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "metrics.jsonl").write_text("{no JSON\n")
    report.write(run_dir)
    assert capsys.readouterr().err.startswith("april: no full report of this run: JSONDecodeError")


def test_memory_is_the_peak_of_each_process_summed_over_them() -> None:
    def row(pid: int, reserved: int, paused: int) -> dict[str, Any]:
        sizes = {"memory/weights/reserved": reserved, "memory/weights/paused": paused, "memory/weights/allocated": 7}
        return {"time": 1.0, "step_key": "memory/operations", "step": 1, "pid": pid, **sizes}

    rows = [row(1, 10, 0), row(1, 12, 12), row(2, 5, 5), row(1, 8, 0), {"step_key": "rollout/step", "memory/x/y": 1}]
    assert measures.memory(rows) == {"weights": {"reserved": 17, "paused": 17}}


def decision(engine: str, step: int, choice: str | int, kind: str = "toggle") -> dict[str, Any]:
    return {"engine": engine, "step": step, "kind": kind, "choice": choice}


@pytest.mark.parametrize(
    ("entries", "value"),
    [
        ([], None),
        ([decision("0", 1, "speculating")], 1.0),
        ([decision("0", 1, "plain")], 0.0),
        ([decision("0", 1, "plain"), decision("0", 31, "speculating"), decision("0", 41, 3, "gamma")], 0.25),
        (
            [
                decision("0", 1, "speculating"),
                decision("1", 1, "plain"),
                decision("0", 11, 3, "gamma"),
                decision("1", 31, "plain"),
            ],
            0.25,
        ),
    ],
)
def test_the_share_of_steps_that_speculated(entries: list[dict[str, Any]], value: float | None) -> None:
    share = measures.SdShare()
    for entry in entries:
        share.take(entry)
    assert share.value == value


def test_each_line_is_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "growing.jsonl"
    tail = Tail(path)
    assert tail.new() == []
    path.write_text('{"a": 1}\n{"a"')
    assert tail.new() == [{"a": 1}]
    with path.open("a") as file:
        file.write(": 2}\n")
    assert tail.new() == [{"a": 2}]
    assert tail.new() == []
