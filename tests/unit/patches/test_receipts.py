"""Training starts only when every kind of process reported every patch that it must have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from april.errors import AprilError
from april.patches import process, receipts
from april.patches.core import Feature, Patch, Process, targets


def patch(name: str, feature: Feature, processes: set[Process], optional: bool = False) -> Patch:
    return Patch(
        name=name,
        feature=feature,
        targets=targets("m:f"),
        versions="",
        apply="x:y",
        processes=frozenset(processes),
        reason="r",
        link="l",
        until="u",
        optional=optional,
    )


ROWS = [
    patch("a", Feature.HOST, {Process.TRAIN_ACTOR}),
    patch("b", Feature.CPU, {Process.TRAIN_ACTOR, Process.SCHEDULER}),
    patch("c", Feature.TELEMETRY, {Process.ENGINE}, optional=True),
]


def leave(run_dir: Path, role: str, pid: int, patches: list[str], skipped: dict[str, str] | None = None) -> None:
    folder = run_dir / "receipts"
    folder.mkdir(exist_ok=True)
    body = {"role": role, "machine": "n1", "pid": pid, "patches": patches, "skipped": skipped or {}}
    (folder / f"{role}-n1-{pid}.json").write_text(json.dumps(body))


def test_all_reported(tmp_path: Path) -> None:
    leave(tmp_path, "train_actor", 1, ["a", "b", "more"])
    leave(tmp_path, "scheduler", 2, ["b"])
    found = receipts.verify(tmp_path, ROWS, {Process.TRAIN_ACTOR: 1, Process.SCHEDULER: 1})
    assert {receipt.pid for receipt in found} == {1, 2}


def test_a_process_that_did_not_report(tmp_path: Path) -> None:
    leave(tmp_path, "train_actor", 1, ["a", "b"])
    with pytest.raises(AprilError, match="0 of 1 scheduler processes reported"):
        receipts.verify(tmp_path, ROWS, {Process.TRAIN_ACTOR: 1, Process.SCHEDULER: 1})


def test_one_of_two_processes_without_a_patch(tmp_path: Path) -> None:
    leave(tmp_path, "train_actor", 1, ["a", "b"])
    leave(tmp_path, "train_actor", 2, ["a"])
    with pytest.raises(AprilError, match="train_actor process 2 on n1 runs without b"):
        receipts.verify(tmp_path, ROWS, {Process.TRAIN_ACTOR: 2})


def test_one_of_two_engines_did_not_report(tmp_path: Path) -> None:
    leave(tmp_path, "engine", 1, ["c"])
    with pytest.raises(AprilError, match="1 of 2 engine processes reported"):
        receipts.verify(tmp_path, ROWS, {Process.ENGINE: 2})


def test_an_optional_patch_may_be_missing_where_the_process_says_why(tmp_path: Path) -> None:
    leave(tmp_path, "engine", 1, [])
    with pytest.raises(AprilError, match="engine process 1 on n1 runs without c"):
        receipts.verify(tmp_path, ROWS, {Process.ENGINE: 1})
    leave(tmp_path, "engine", 1, [], {"c": "changed"})
    assert receipts.verify(tmp_path, ROWS, {Process.ENGINE: 1})


def test_the_reason_of_a_process_that_refused_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APRIL_RUN_DIR", str(tmp_path))
    receipts.write_fault("patch b: it has changed")
    with pytest.raises(AprilError, match=r"^patch b: it has changed$"):
        receipts.verify(tmp_path, ROWS, {Process.SCHEDULER: 1})


def test_a_receipt_is_written_for_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APRIL_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(process, "_role", Process.ENGINE)
    receipts.write()
    assert [receipt.role for receipt in receipts.read(tmp_path)] == [Process.ENGINE]


def test_equal_pids_of_two_machines_are_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APRIL_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RAY_RAYLET_PID", "77")
    monkeypatch.setattr(process, "_role", Process.ENGINE)
    for name in ("n1", "n2"):
        monkeypatch.setattr(receipts.socket, "gethostname", lambda name=name: name)
        receipts.write()
        receipts.write_fault(f"{name} is broken")
    assert {(found.machine, found.pid) for found in receipts.read(tmp_path)} == {
        ("n1", os.getpid()),
        ("n2", os.getpid()),
    }
    assert receipts.faults(tmp_path) == ["n1 is broken", "n2 is broken"]
    assert json.loads(next(tmp_path.glob("receipts/engine-n2-*")).read_text())["raylet"] == 77


def test_outside_a_run_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APRIL_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    receipts.write()
    assert list(tmp_path.iterdir()) == []
