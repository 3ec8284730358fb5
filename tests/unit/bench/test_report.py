"""From the events of a run to the JSON object, the table and the picture."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from april.errors import AprilError
from april.launch.bench import pictures, report
from april.launch.bench.settings import MODES, Settings

Events = list[dict[str, Any]]


def test_the_document(bench_events: Events, bench_settings: Settings) -> None:
    result = report.read(bench_events, bench_settings)
    body = json.loads(
        json.dumps(report.document(result, bench_settings, {"machine": report.machine(), "host": "slime"}))
    )
    assert list(body["modes"]) == list(MODES)
    promised = {"trained_tokens_per_s", "wasted_tokens", "bound_share", "off_policy_share", "max_lag", "rounds"}
    assert all(promised <= figures.keys() for figures in body["modes"].values())
    assert body["speedup_vs_sync"] == pytest.approx(2.0)
    assert body["speedup_vs_upstream_partial"] == pytest.approx(1.5)
    april = body["modes"]["april"]
    assert (april["rounds"], april["wasted_tokens"], april["max_lag"]) == (2, 0, 1)
    assert april["trained_tokens"] == sum(bench_settings.lengths[2:6])
    assert april["lag_histogram"] == {"0": april["trained_tokens"] - 2, "1": 2}
    assert body["speed"]["prefill_ms_per_token"] == pytest.approx(1.6)  # of the longer prompts
    assert body["machine"]["cpus"] >= 1
    assert body["notes"] == []


def test_the_table_names_what_was_compared(bench_events: Events, bench_settings: Settings) -> None:
    text = report.table(report.read(bench_events, bench_settings))
    assert "april is 2.00 times as fast as sync" in text
    assert all(mode in text for mode in MODES)


def test_without_april_nothing_is_compared(bench_events: Events, bench_settings: Settings) -> None:
    settings = dataclasses.replace(bench_settings, modes=("sync",))
    events = [event for event in bench_events if event.get("mode", "sync") == "sync"]
    body = report.document(report.read(events, settings), settings, {})
    assert body["speedup_vs_sync"] is None
    assert body["speedup_vs_upstream_partial"] is None


def test_a_share_above_one_is_explained(bench_events: Events, bench_settings: Settings) -> None:
    for event in bench_events:
        if event.get("mode") == "april":
            event["ended"] = event["started"] + 1e-3
    notes = report.notes(report.read(bench_events, bench_settings))
    assert len(notes) == 1
    assert notes[0].startswith("april: ")
    assert "no schedule can do that" in notes[0]


def test_rounds_that_are_missing_are_a_failure(bench_events: Events, bench_settings: Settings) -> None:
    with pytest.raises(AprilError, match="mode april: the run holds 2 rounds, not 3"):
        report.read(bench_events[:-1], bench_settings)


def test_the_picture(bench_events: Events, bench_settings: Settings, tmp_path: Path) -> None:
    result = report.read(bench_events, bench_settings)
    (path,) = pictures.draw(result, bench_settings, tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert pictures.typical(result.rounds["sync"]).seconds == 2.0
