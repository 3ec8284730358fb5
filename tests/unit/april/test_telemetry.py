"""Events, metrics and the timeline."""

from __future__ import annotations

import json
import multiprocessing
import time
import types
from pathlib import Path

import numpy
import pytest

from april.telemetry import events, metrics
from april.telemetry.summary import speculation_metrics
from april.telemetry.timeline import Timeline


def write_many(number: int) -> None:
    for count in range(200):
        events.emit("test", writer=number, count=count, padding="x" * 2000)


def test_processes_do_not_mix_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APRIL_RUN_DIR", str(tmp_path))
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = events.read(tmp_path / "events.jsonl", "test")
    assert sorted((event["writer"], event["count"]) for event in found) == [
        (writer, count) for writer in range(3) for count in range(200)
    ]


def test_nothing_happens_outside_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APRIL_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    events.emit("test")
    metrics.record(None, {}, "rollout/step")
    assert list(tmp_path.iterdir()) == []


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"time": 1, "event": "a"}\n{"time": 2, "event": "b"}\n{"time": 3, "ev')
    assert [event["event"] for event in events.read(path)] == ["a", "b"]
    assert [event["time"] for event in events.read(path, "b")] == [2]


def test_metrics_keep_what_the_host_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APRIL_RUN_DIR", str(tmp_path))
    logged = {"rollout/step": 7, "loss": numpy.float32(0.5), "lengths": numpy.array([1, 2])}
    metrics.record(None, logged, "rollout/step")
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found.pop("time") == pytest.approx(time.time(), abs=10)
    assert found == {"step_key": "rollout/step", "step": 7, "rollout/step": 7, "loss": 0.5, "lengths": [1, 2]}


def test_the_timeline_sees_each_response_end() -> None:
    first, second = (types.SimpleNamespace(status="pending", response_length=0) for _ in range(2))
    with Timeline(interval=0.01) as line:
        line.watch(first)
        line.watch(second)
        time.sleep(0.05)
        first.status, first.response_length = "completed", 5
        time.sleep(0.1)
        now = time.time()
        start, end = line.span(first) or (0, 0)
        assert 0.04 <= end - start <= 0.12
        assert (line.span(second) or (0, 0))[1] >= now, "one that still runs ends now"
        assert line.span(object()) is None


def spec(cycles: int, drafted: int, accepted: int, tokens: int) -> types.SimpleNamespace:
    info = types.SimpleNamespace(
        spec_verify_ct=cycles, spec_draft_token_num=drafted, spec_accept_token_num=accepted, completion_token_num=tokens
    )
    return types.SimpleNamespace(spec_info=info)


def test_how_samples_were_decoded_is_said_where_an_engine_drafted() -> None:
    # 10 cycles that accepted 20 drafts gave 30 tokens; 10 plain steps the other 10.
    found = speculation_metrics([spec(10, 40, 20, 40), spec(0, 0, 0, 60)])
    assert found == {"april/sd_share": 10 / 80, "april/sd_tau": 3.0, "april/sd_alpha": 0.5}
    assert speculation_metrics([spec(0, 0, 0, 60), types.SimpleNamespace()]) == {}
