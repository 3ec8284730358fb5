"""Predictions near what was measured follow it, and far from it the form stands."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.local import MOST, Corrected
from specrollout.roofline.model import cycle_time, speedup
from specrollout.roofline.online import MEDIAN_STEPS, OnlineRoofline
from specrollout.roofline.sweep import DRAFTER, TARGET, VERIFY

CONSTANTS = ModelConstants("m", 1, 2.2e9, 0.7e9, 2.1e9, 4.0 * 22 * 2048, 45056.0, 22, 32, 2048, 1.3e8)
FORM = OnlineRoofline.unknown(CONSTANTS).form


def test_a_form_without_residuals_is_itself() -> None:
    for model in (Corrected(FORM, {}), Corrected.of(FORM, {TARGET: []})):
        assert float(speedup(model, 4, 300, 5, 3.0)) == float(speedup(FORM, 4, 300, 5, 3.0))


def test_a_residual_moves_its_neighbourhood_in_its_mode_only() -> None:
    model = Corrected.of(FORM, {VERIFY: [(24, 80, 1, 0.5, 1.0)]})

    def moved(batch: float, context: float, gamma: float) -> float:
        return math.log(float(model.t_verify(batch, context, gamma)) / float(FORM.t_verify(batch, context, gamma)))

    assert moved(24, 80, 1) == pytest.approx(0.5 / 1.1)
    assert 0.3 < moved(26, 90, 1) < 0.5 / 1.1
    assert abs(moved(4, 80, 1)) < 1e-3
    assert abs(moved(24, 80, 11)) < 1e-3
    assert float(model.t_target(24, 80)) == float(FORM.t_target(24, 80))


def test_arrays_of_draft_lengths_are_moved_one_by_one() -> None:
    model = Corrected.of(FORM, {VERIFY: [(4, 80, 3, 0.3, 1.0)], DRAFTER: [(4, 80, 3, -0.2, 1.0)]})
    lengths = np.arange(1.0, 12.0)
    alone = [float(cycle_time(model, 4, 80, gamma)) for gamma in lengths]
    assert cycle_time(model, 4, 80, lengths) == pytest.approx(alone)


def test_a_correction_has_a_bound() -> None:
    model = Corrected.of(FORM, {TARGET: [(4, 80, 0, 9.0, 1.0)]})
    assert float(model.t_target(4, 80)) == pytest.approx(math.exp(MOST) * float(FORM.t_target(4, 80)))


def test_an_engine_that_no_form_describes_is_followed_where_it_was_seen() -> None:
    """Cycles are as cheap at 24 requests as at 12: the form, with a cost for each row, cannot say so."""
    seconds = {TARGET: lambda b: 0.02 + 0.002 * b, DRAFTER: lambda b: 0.01, VERIFY: lambda b: 0.03}
    online = OnlineRoofline.unknown(CONSTANTS)
    for _ in range(10 * MEDIAN_STEPS):
        for batch in (1, 4, 12, 24):
            for mode, take in seconds.items():
                online.observe(mode, batch, 100.0, 3, take(batch))
    online.fit()
    for batch in (1, 4, 12, 24):
        true = 2.5 * seconds[TARGET](batch) / (3 * 0.01 + 0.03)
        assert online.estimate(batch, 100.0, 3, 2.5).speedup == pytest.approx(true, rel=0.06)
