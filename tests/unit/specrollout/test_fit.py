"""Our form: how near it comes to the public sweeps, seen and unseen, and whether it finds made-up devices again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import CPU, FAST_PAIR, HALF_OF_7B, SMALL, form, sweep_of

from april.errors import UsageError
from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.crossval import crossval, splits
from specrollout.roofline.fit import Fitted, fit
from specrollout.roofline.fit_paper import fit_paper
from specrollout.roofline.measure import Grid
from specrollout.roofline.physical import PhysicalForm
from specrollout.roofline.sweep import Sweep
from specrollout.roofline.tiles import EngineTraits
from specrollout.roofline.validate import figures, validate

ACCEPTED = {"7b": 6.7, "14b": 5.5}
Fits = Callable[[str], Fitted]


def worst(found: dict[str, float]) -> float:
    return max(found.values())


@pytest.mark.parametrize("model", ["7b", "14b"])
def test_in_sample(fitted: Fits, sweeps: dict[str, Sweep], model: str) -> None:
    found = validate(fitted(model).form, sweeps[model], ACCEPTED[model])
    sound = found["without_starved"]
    assert sound["t_t_mape"] < 0.012
    assert worst(sound["t_d_mape"]) < 0.015
    assert worst(sound["t_v_mape"]) < 0.04
    assert worst(sound["cycle_mape"]) < 0.015
    assert worst(found["t_v_mape"]) < 0.05
    assert worst(found["cycle_mape"]) < 0.035
    assert min(found["sign_accuracy"], sound["sign_accuracy"]) > 0.98


@pytest.mark.parametrize("model", ["7b", "14b"])
def test_held_out(sweeps: dict[str, Sweep], constants: dict[str, ModelConstants], model: str) -> None:
    found = crossval(sweeps[model], lambda seen: fit(seen, constants[model]).form, ACCEPTED[model])
    assert list(found) == ["gamma", "batch", "context"]
    for name, split in found.items():
        sound = split["without_starved"]
        assert worst(sound["cycle_mape"]) < 0.025, name
        assert sound["t_t_mape"] < 0.03, name
        assert worst(sound["t_d_mape"]) < 0.05, name
        assert worst(sound["t_v_mape"]) < 0.075, name


def test_splits_share_no_row_but_those_of_the_target(sweeps: dict[str, Sweep]) -> None:
    for split in splits(sweeps["7b"]):
        shared = {row.line for row in split.seen.rows} & {row.line for row in split.held_out.rows}
        modes = {row.mode for row in sweeps["7b"].rows if row.line in shared}
        assert modes == ({"target_decode"} if split.name == "gamma" else set())


def test_an_unseen_model_by_its_constants_alone(
    fitted: Fits, sweeps: dict[str, Sweep], constants: dict[str, ModelConstants]
) -> None:
    """The parameters are the device's and the engine's: those of one model foretell the target of the other."""
    for seen, unseen in (("7b", "14b"), ("14b", "7b")):
        moved = replace(fitted(seen).form, constants=constants[unseen])
        found = validate(moved, sweeps[unseen], ACCEPTED[unseen])["without_starved"]
        assert found["t_t_mape"] < 0.02
        assert worst(found["t_v_mape"]) < 0.05
        assert worst(found["cycle_mape"]) < 0.09


@pytest.mark.parametrize("model", ["7b", "14b"])
def test_better_than_the_published_form(
    fitted: Fits, sweeps: dict[str, Sweep], constants: dict[str, ModelConstants], model: str
) -> None:
    paper = figures(fit_paper(sweeps[model], constants[model]).form, sweeps[model], ACCEPTED[model])
    ours = figures(fitted(model).form, sweeps[model], ACCEPTED[model])
    for name in ("t_d_mape", "t_v_mape", "cycle_mape"):
        assert all(ours[name][g] < paper[name][g] for g in paper[name]), name


@pytest.mark.parametrize("model", ["7b", "14b"])
def test_parameters_are_physical(fitted: Fits, model: str) -> None:
    form = fitted(model).form
    assert 1.4e12 < form.values["bandwidth_bytes_per_s"] < 2.039e12
    assert 2e14 < form.values["dense_flop_per_s"] < 3.12e14
    assert form.values["quantized_flop_per_s"] < form.values["dense_flop_per_s"]
    assert form.traits == EngineTraits("query", shared_prefix=True, quantized_tiles=True)
    covariance = fitted(model).covariance
    assert np.allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0


CASES = [
    (SMALL, CPU, Grid((1, 2, 3, 6, 12), (100, 300, 900), (2, 4, 6), 0, 5)),
    (HALF_OF_7B, FAST_PAIR, Grid((1, 3, 10, 30, 100, 200), (500, 2000, 8000), (1, 5, 9, 16), 0, 5)),
    (HALF_OF_7B, {"bandwidth_bytes_per_s": 4e12, "kv_reread": 1.0}, Grid((2, 40), (700, 1500), (4,), 0, 5)),
]


@pytest.mark.parametrize(("constants", "values", "grid"), CASES, ids=["cpu", "tp2", "few points"])
def test_other_devices_and_grids(
    tmp_path: Path, constants: ModelConstants, values: dict[str, float], grid: Grid
) -> None:
    truth = form(constants, values)
    found = fit(sweep_of(truth, grid, tmp_path / "s.csv"), constants).form
    assert not found.traits.shared_prefix
    exact = sweep_of(truth, grid, tmp_path / "exact.csv", noise=0.0)
    errors = figures(found, exact, 4.0)
    assert errors["t_t_mape"] < 0.03
    assert worst(errors["cycle_mape"]) < 0.03


@pytest.mark.parametrize("padding", ["query", "sizes"])
@pytest.mark.parametrize("shared", [True, False])
def test_what_the_engine_does_is_found_out(tmp_path: Path, padding: str, shared: bool) -> None:
    traits = EngineTraits(padding, shared_prefix=shared)  # type: ignore[arg-type]
    truth = form(HALF_OF_7B, {"link_bytes_per_s": 1e12}, traits)
    grid = Grid((1, 2, 5, 12, 17, 33, 66), (300, 1000, 4000), (3, 11, 15), 0, 5)
    found = fit(sweep_of(truth, grid, tmp_path / "s.csv", noise=0.005), HALF_OF_7B).form.traits
    assert found.shared_prefix == shared
    assert (found.graph_padding == "query") == (padding == "query")  # the tiles of 4-bit products hide other paddings


def test_a_measured_gemm_pulls_where_the_rows_say_little(
    sweeps: dict[str, Sweep], constants: dict[str, ModelConstants]
) -> None:
    small = sweeps["7b"].where(lambda row: row.batch <= 2)
    free, pulled = (fit(small, constants["7b"], gemm).form.values["dense_flop_per_s"] for gemm in (None, 2.3e14))
    assert abs(np.log(pulled / 2.3e14)) < abs(np.log(free / 2.3e14))


def test_the_link_counts_from_two_devices_on() -> None:
    values = {"link_bytes_per_s": 1e10}
    alone: PhysicalForm = form(replace(HALF_OF_7B, tp=1), {})
    assert float(form(HALF_OF_7B, values).t_verify(64, 1000, 15)) - float(
        alone.t_verify(64, 1000, 15)
    ) == pytest.approx(2 * 28 * 2 * (2 - 1) / 2 * 2 * 64 * 16 * 3584 / 1e10)


def test_constants_without_a_shape(sweeps: dict[str, Sweep], constants: dict[str, ModelConstants]) -> None:
    bare = replace(constants["7b"], layers=0, heads=0)
    with pytest.raises(UsageError, match="no L, n_heads"):
        fit(sweeps["7b"], bare)
    assert figures(fit_paper(sweeps["7b"], bare).form, sweeps["7b"])["t_t_mape"] < 0.02
