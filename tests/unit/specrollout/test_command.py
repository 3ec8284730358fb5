"""april calibrate, from files to what is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from april.launch.cli import main

DATA = Path(__file__).parent / "data"
SWEEP, CONSTANTS = DATA / "sweep_a100_tp1_qwen257b.csv", DATA / "model_constants_qwen257b_tp1.json"
PUBLISHED = DATA / "a100_tp1_qwen257b.json"
KEYS = {"t_t_mape", "t_d_mape", "t_v_mape", "cycle_mape", "sign_accuracy", "points"}


def calibrate(*words: Any) -> int:
    return main(["calibrate", *map(str, words)])


def test_fit_then_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c.json"
    gemm = DATA / "F_eff_bench_a100.json"
    assert calibrate("fit", "--sweep", SWEEP, "--constants", CONSTANTS, "--gemm", gemm, "--out", out) == 0
    assert "without 24 starved rows" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["fingerprint"]["device"] == "NVIDIA A100-SXM4-80GB"
    assert found["held_out"].keys() == {"gamma", "batch", "context"}
    assert len(found["residuals"]["rows"]) == 45 + 180 + 178
    assert len(found["covariance"]["matrix"]) == len(found["covariance"]["order"]) == 15
    assert found["provenance"]["sweep"]["name"] == SWEEP.name
    assert calibrate("validate", "--config", out, "--sweep", SWEEP, "--l-accept", 6.7, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures.keys() >= KEYS
    assert figures["cycle_mape"].keys() == {"3", "7", "11", "15"}
    assert all(value < 0.015 for value in figures["without_starved"]["cycle_mape"].values())
    assert len(figures["starved"]) == 24
    assert calibrate("plot", "--config", out, "--sweep", SWEEP, "--l-accept", 6.7, "--out", tmp_path / "p.png") == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_paper_form_and_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c.json"
    arguments = ("--sweep", SWEEP, "--constants", CONSTANTS, "--form", "paper")
    assert calibrate("fit", *arguments, "--out", out) == 0
    said = capsys.readouterr().out
    assert "give --device" in said
    assert "is that right?" not in said
    others = ("--constants", DATA / "model_constants_qwen2514b_tp1.json")
    assert calibrate("fit", *arguments, *others, "--device", "A100", "--out", tmp_path / "d.json") == 0
    assert "the sweep is of Qwen2.5-7B, the constants of Qwen2.5-14B: is that right?" in capsys.readouterr().out
    assert json.loads(out.read_text())["form"] == "paper"
    assert calibrate("crossval", *arguments, "--json") == 0
    assert {name: split.keys() >= KEYS for name, split in json.loads(capsys.readouterr().out).items()} == {
        "gamma": True,
        "batch": True,
        "context": True,
    }
    assert calibrate("validate", "--config", out, "--sweep", SWEEP) == 0
    assert "row  369  drafter_decode B  64  S  4096  gamma 11" in capsys.readouterr().out


def test_predict(capsys: pytest.CaptureFixture[str]) -> None:
    point = ("--batch", 16, "--seq", 2048, "--gamma", 5)
    assert calibrate("predict", "--config", PUBLISHED, *point, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert round(found["speedup"], 3) == 1.229
    assert round(found["boundary_batch"], 1) == 31.8
    assert found["speculate"] is True
    assert found["cycle_ms"] == pytest.approx(5 * found["t_d_ms"] + found["t_v_ms"])


def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    entry = {"time_s": 10.0, "engine": "0", "step": 5, "kind": "toggle", "choice": "plain", "reason": "speedup < 1.050"}
    log.write_text(json.dumps({**entry, "inputs": {"batch": 48}}) + "\n")
    assert calibrate("explain", log, "--at", "12") == 0
    assert capsys.readouterr().out == (
        "engine 0: plain for 2.0 s; last logged 2.0 s before, at step 5\n  speedup < 1.050 (batch 48)\n"
    )
    assert calibrate("explain", log, "--at", "9") == 2


def spoiled(tmp_path: Path, old: str, new: str) -> Path:
    path = tmp_path / "spoiled.csv"
    path.write_text(SWEEP.read_text().replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["validate", "--config", "none.json", "--sweep", SWEEP], "calibration none.json: No such file"),
        (["validate", "--config", CONSTANTS, "--sweep", SWEEP], "neither of format"),
        (["validate", "--config", PUBLISHED, "--sweep", CONSTANTS], "has no column"),
        (["validate", "--config", PUBLISHED, "--sweep", SWEEP, "--l-accept", "0"], "'0' is no positive number"),
        (["fit", "--sweep", SWEEP, "--constants", SWEEP, "--out", "c.json"], "is no JSON"),
        (
            ["fit", "--sweep", SWEEP, "--constants", PUBLISHED, "--out", "c.json"],
            "no W_t (bytes of the target's weights)",
        ),
        (["fit", "--sweep", SWEEP, "--constants", CONSTANTS, "--gemm", CONSTANTS, "--out", "c.json"], "F_eff_hardware"),
        (["fit", "--sweep", SWEEP, "--constants", CONSTANTS, "--out", "none/c.json"], "a folder that exists"),
        (["fit", "--sweep", SWEEP, "--constants", CONSTANTS], "the following arguments are required: --out"),
        (["predict", "--config", PUBLISHED, "--batch", "-1", "--seq", "9", "--gamma", "3"], "'-1' is no positive"),
        (["predict", "--config", PUBLISHED, "--batch", "1", "--seq", "9", "--gamma", "0"], "'0' is no whole number"),
        (["plot", "--config", PUBLISHED, "--out", "picture.pdf"], "ends in .png"),
        (["measur"], "invalid choice: 'measur'"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    words: list[Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert calibrate(*words) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_bad_sweep_leaves_the_old_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c.json"
    out.write_text("old")
    sweep = spoiled(tmp_path, "9.528", "nan")
    assert calibrate("fit", "--sweep", sweep, "--constants", CONSTANTS, "--out", out) == 2
    assert "row 3: a time that is no positive number" in capsys.readouterr().err
    assert out.read_text() == "old"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from april.launch.cli import main\n"
        "try: main(['calibrate', 'fit', '--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('numpy', 'scipy', 'matplotlib', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
