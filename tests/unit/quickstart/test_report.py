"""The figures of runs whose events and metrics are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from april.errors import AprilError
from april.launch.quickstart import pictures, report

KEYS = [
    "host",
    "model",
    "steps",
    "partials_resumed",
    "wasted_tokens",
    "weight_sync_logprob_diff",
    "first_rollout_s",
    "total_s",
    "reward_first",
    "reward_last",
    "modes",
]


@pytest.fixture
def results(sync_run: Path, april_run: Path) -> dict[str, report.Summary]:
    return {"sync": report.summarize(sync_run, "sync", 4), "april": report.summarize(april_run, "april", 4)}


def test_figures(results: dict[str, report.Summary]) -> None:
    april = results["april"]
    assert (april.partials_resumed, april.wasted_tokens, april.max_lag) == (18, 20, 2)
    assert april.first_rollout_s == 12.0
    assert april.total_s == 25.0
    assert april.rollout_tok_s == pytest.approx(4 * 400 / 8)
    assert april.trained_tok_s == pytest.approx(4 * 300 / 12)
    assert april.rollout_s == 2.0
    assert april.step_s == 3.0
    assert april.off_policy_share == pytest.approx(180 / 1200)
    assert (april.reward_first, april.reward_last) == (0.5, 0.75)


def test_weight_sync_is_judged_where_no_token_is_old(results: dict[str, report.Summary]) -> None:
    assert results["sync"].weight_sync_logprob_diff == pytest.approx(0.005)
    assert results["april"].weight_sync_logprob_diff == pytest.approx(0.002)


def test_document_has_every_key(results: dict[str, report.Summary]) -> None:
    document = report.document(results, "miles", "tiny", 4, 60.0)
    assert set(KEYS) <= set(document)
    assert set(document["modes"]) == {"sync", "april"}
    for mode in document["modes"].values():
        assert {*KEYS[3:10]} <= set(mode)
    assert document["partials_resumed"] == 18
    assert document["weight_sync_logprob_diff"] == pytest.approx(0.005)
    assert document["total_s"] == 60.0


def test_document_of_sync_alone(results: dict[str, report.Summary]) -> None:
    assert report.document({"sync": results["sync"]}, "miles", "tiny", 4, 60.0)["partials_resumed"] == 0


def test_table_has_a_column_for_each_mode(results: dict[str, report.Summary]) -> None:
    lines = report.table(results, 60.0).splitlines()
    assert lines[0].split() == ["sync", "april"]
    assert next(line for line in lines if line.startswith("partials resumed")).split()[-2:] == ["0", "18"]


def test_a_run_that_lost_a_round_is_refused(sync_run: Path) -> None:
    with pytest.raises(AprilError, match="4 rounds, not 5"):
        report.summarize(sync_run, "sync", 5)


def test_pictures_are_drawn(results: dict[str, report.Summary], tmp_path: Path) -> None:
    from matplotlib.image import imread

    for path in pictures.draw(results, tmp_path):
        image = imread(path)
        assert image.shape[1] >= 1000
        assert image.std() > 0.05  # not an empty canvas


def test_running_mean() -> None:
    assert pictures.running_mean([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]
