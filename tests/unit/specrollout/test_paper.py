"""The published form: its golden numbers, and what the published validator prints for the published fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specrollout.roofline.calibration import read_calibration
from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.fit_paper import fit_paper
from specrollout.roofline.model import boundary_batch, cycle_time, speedup
from specrollout.roofline.sweep import Sweep
from specrollout.roofline.validate import figures

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128]
GEMM_FLOP_PER_S = 233.514e12
ACCEPTED = {"7b": 6.7, "14b": 5.5}


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [
        (5, [1.457, 1.438, 1.401, 1.335, 1.229, 1.048, 0.784, 0.596]),
        (7, [1.591, 1.569, 1.529, 1.456, 1.339, 1.086, 0.820, 0.628]),
        (11, [1.737, 1.712, 1.667, 1.587, 1.416, 1.123, 0.856, 0.659]),
    ],
)
def test_golden_speedups(data: Path, gamma: int, expected: list[float]) -> None:
    model = read_calibration(data / "a100_tp1_qwen257b.json").model
    assert speedup(model, np.array(BATCHES), 2048, gamma, gamma).round(3).tolist() == expected


def test_golden_boundaries(data: Path) -> None:
    model = read_calibration(data / "a100_tp1_qwen257b.json").model
    assert [round(boundary_batch(model, 2048, g, g), 1) for g in (5, 7, 9, 11)] == [31.8, 34.9, 36.8, 38.2]


def test_the_formula_by_hand(data: Path) -> None:
    form = read_calibration(data / "a100_tp1_qwen257b.json").form
    batch, context, gamma = 40, 3000, 11
    memory = (15230974976 + 26205 * batch * context) / 1617462633773.974
    compute = batch * (14140571648 + context * 401408) / 233.514e12
    assert float(form.t_target(batch, context)) == pytest.approx(max(memory, compute) + 39e-6 * batch, rel=1e-12)
    drafter = (1.334 * 5443042304 + 26205 * batch * context) / 1617462633773.974
    assert float(form.t_drafter(batch, context, gamma)) == pytest.approx(
        max(drafter, compute) + 69e-6 * batch, rel=1e-12
    )
    verify = max(memory, 12 * compute) + 152.3e-6 * batch
    assert float(form.t_verify(batch, context, gamma)) == pytest.approx(verify, rel=1e-12)
    assert float(cycle_time(form, batch, context, gamma)) == pytest.approx(
        11 * (max(drafter, compute) + 69e-6 * batch) + verify, rel=1e-12
    )


PUBLISHED: dict[str, dict[str, Any]] = {
    "7b": {
        "t_t_mape": 1.9,
        "t_d_mape": [5.9, 6.1, 9.9, 6.8],
        "t_v_mape": [7.8, 10.3, 13.4, 10.9],
        "cycle_mape": [4.2, 4.1, 6.6, 5.2],
        "right": 170,
        "points": 178,
    },
    "14b": {
        "t_t_mape": 3.4,
        "t_d_mape": [7.7, 7.9, 7.8, 7.0],
        "t_v_mape": [6.4, 8.9, 9.7, 8.8],
        "cycle_mape": [6.1, 6.6, 6.3, 6.1],
        "right": 177,
        "points": 180,
    },
}


@pytest.mark.parametrize("model", ["7b", "14b"])
def test_figures_of_the_published_validator_to_their_last_digit(
    data: Path, sweeps: dict[str, Sweep], model: str
) -> None:
    form = read_calibration(data / f"a100_tp1_qwen25{model}.json").model
    found = figures(form, sweeps[model], ACCEPTED[model])
    expected = PUBLISHED[model]
    assert round(100 * found["t_t_mape"], 1) == expected["t_t_mape"]
    for name in ("t_d_mape", "t_v_mape", "cycle_mape"):
        assert [round(100 * value, 1) for value in found[name].values()] == expected[name], name
    assert found["points"] == expected["points"]
    assert round(found["sign_accuracy"] * found["points"]) == expected["right"]


@pytest.mark.parametrize("gemm", [GEMM_FLOP_PER_S, None])
@pytest.mark.parametrize("model", ["7b", "14b"])
def test_our_fit_of_the_published_form_is_no_worse(
    data: Path, sweeps: dict[str, Sweep], constants: dict[str, ModelConstants], model: str, gemm: float | None
) -> None:
    theirs = figures(read_calibration(data / f"a100_tp1_qwen25{model}.json").model, sweeps[model], ACCEPTED[model])
    ours = figures(fit_paper(sweeps[model], constants[model], gemm).form, sweeps[model], ACCEPTED[model])
    assert ours["t_t_mape"] <= theirs["t_t_mape"]
    assert np.mean(list(ours["cycle_mape"].values())) <= np.mean(list(theirs["cycle_mape"].values()))
    assert ours["sign_accuracy"] >= theirs["sign_accuracy"]
