"""The calibration file: whole or not at all, the same after reading, and refused where it does not belong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import FAST_PAIR, HALF_OF_7B, SMALL, form

from april.errors import UsageError
from specrollout.roofline.calibration import (
    Calibration,
    Fingerprint,
    fingerprint_of,
    read_calibration,
    write_calibration,
)
from specrollout.roofline.parameters import parameters

A100 = "NVIDIA A100-SXM4-80GB"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    made = form(HALF_OF_7B, FAST_PAIR)
    size = len(parameters(2))
    covariance = {"order": [p.name for p in parameters(2)], "matrix": np.eye(size).tolist()}
    path = tmp_path / "c.json"
    write_calibration(Calibration(made, fingerprint_of(HALF_OF_7B, A100), {"covariance": covariance}), path)
    return path


def test_round_trip(written: Path) -> None:
    read = read_calibration(written)
    made = form(HALF_OF_7B, FAST_PAIR)
    assert read.form.t_verify(7, 900, 5) == pytest.approx(made.t_verify(7, 900, 5), rel=1e-12)
    assert read.fingerprint == Fingerprint(A100, "Half-7B", 2, 7.6e9, 2.7e9)
    covariance = read.covariance()
    assert covariance is not None
    assert np.array_equal(covariance, np.eye(len(parameters(2))))


def test_the_paper_form_too(data: Path, tmp_path: Path) -> None:
    published = read_calibration(data / "a100_tp1_qwen257b.json")
    write_calibration(published, tmp_path / "c.json")
    assert read_calibration(tmp_path / "c.json").form == published.form


def test_units_stand_beside_the_parameters(written: Path) -> None:
    found = json.loads(written.read_text())
    assert found["parameters"].keys() == found["units"].keys() == found["meaning"].keys()
    assert found["units"]["bandwidth_bytes_per_s"] == "byte/s"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "NVIDIA H200"}, "of device NVIDIA A100-SXM4-80GB, this is NVIDIA H200"),
        ({"device": ""}, "this is unknown"),
        ({"tp": 1}, "of tensor parallelism 2, this is 1"),
        ({"model": "Other-7B"}, "of model Half-7B, this is Other-7B"),
        ({"target_bytes": 9e9}, "target bytes"),
        ({"drafter_bytes": 2.6e9}, "drafter bytes"),
    ],
)
def test_a_file_of_another_device_or_model(written: Path, change: dict[str, Any], reason: str) -> None:
    read = read_calibration(written)
    assert read.mismatch(read.fingerprint) is None
    assert reason in (read.mismatch(replace(read.fingerprint, **change)) or "")


def test_names_match_without_their_decoration(data: Path) -> None:
    published = read_calibration(data / "a100_tp1_qwen257b.json")
    running = replace(published.fingerprint, device=A100, model="Qwen/Qwen2.5-7B")
    assert published.mismatch(running) is None
    assert published.mismatch(replace(running, device="NVIDIA A10")) is not None


def test_a_file_that_names_no_device_is_not_used() -> None:
    nameless = Calibration(form(SMALL, {}), fingerprint_of(SMALL, ""))
    assert "names no device" in (nameless.mismatch(fingerprint_of(SMALL, "")) or "")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: c.pop("parameters"),
        lambda c: c["parameters"].pop("request_s"),
        lambda c: c["parameters"].update(request_s=-1),
        lambda c: c["parameters"].update(request_s=float("nan")),
        lambda c: c["engine"].update(graph_padding="some"),
        lambda c: c.update(form="better"),
        lambda c: c.update(format="specrollout-calibration-0"),
        lambda c: c.update(fingerprint="A100"),
    ],
)
def test_a_damaged_file(written: Path, spoil: Any) -> None:
    found = json.loads(written.read_text())
    spoil(found)
    written.write_text(json.dumps(found))
    with pytest.raises(UsageError, match=r"c\.json"):
        read_calibration(written)


@pytest.mark.parametrize("content", [None, "", "[1]", "{", "{}"])
def test_a_file_that_is_none(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "c.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=r"c\.json"):
        read_calibration(path)


def test_what_was_there_stays_when_writing_fails(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        write_calibration(Calibration(form(SMALL, {}), fingerprint_of(SMALL, A100)), written)
    assert written.read_bytes() == before
    assert [p.name for p in written.parent.iterdir()] == ["c.json"]
