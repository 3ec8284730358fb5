"""The script for a device, over host memory: what it measures is measured, and what is wrong is said."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
from april.memory import device_check  # noqa: E402

if torch.cuda.is_available():
    pytest.skip("run it by hand on a GPU: python -m april.memory.device_check", allow_module_level=True)


def test_it_passes_on_host_memory(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "CYCLES", 4)
    assert device_check.main(["--mib", "32", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["ok"]
    assert found["device"].startswith("host memory")
    assert len(found["checks"]) == 6
    assert err.count("ok   ") == 6


def test_memory_that_does_not_come_back_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "resident", lambda: 1 << 30)
    monkeypatch.setattr(device_check, "ANYWHERE", [device_check.frees_and_restores])
    found = device_check.run(8 << 20)
    assert not found["ok"]
    assert not found["checks"]["frees a region, contents kept"]["ok"]
    assert found["checks"]["frees a region, contents kept"]["figure"].startswith("0.0%")


def test_a_check_that_breaks_is_told_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(checks: device_check.Checks) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(device_check, "ANYWHERE", [broken, device_check.freed_while_paused])
    found = device_check.run(8 << 20)
    assert found["checks"]["broken"] == {"ok": False, "figure": "RuntimeError: no such luck"}
    assert found["checks"]["freed while paused"]["ok"]
    assert not found["ok"]
