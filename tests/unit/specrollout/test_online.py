"""The model that follows measured steps: from nothing, after a change, and with steps that went wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made_up import CPU, FAST_PAIR, HALF_OF_7B, SMALL, form

from specrollout.roofline.model import speedup
from specrollout.roofline.online import OnlineRoofline
from specrollout.roofline.physical import PhysicalForm
from specrollout.roofline.sweep import DRAFTER, TARGET, VERIFY

DEVICES = {"cpu": form(SMALL, CPU), "pair": form(HALF_OF_7B, FAST_PAIR)}
GAMMA = 5


def follow(
    online: OnlineRoofline, truth: PhysicalForm, batches: range, noise: float = 0.03, slower: float = 1.0
) -> None:
    """Plain steps at every batch, and a cycle at each."""
    random = np.random.default_rng(7)
    for batch in batches:
        context = float(random.integers(200, 3000))
        times = {
            TARGET: truth.t_target(batch, context),
            DRAFTER: truth.t_drafter(batch, context, GAMMA),
            VERIFY: truth.t_verify(batch, context, GAMMA),
        }
        for mode, seconds in times.items():
            online.observe(mode, batch, context, GAMMA, slower * float(seconds) * math.exp(random.normal(0, noise)))


@pytest.mark.parametrize("device", DEVICES)
def test_an_unknown_device_is_learnt(device: str) -> None:
    truth = DEVICES[device]
    online = OnlineRoofline.unknown(truth.constants, truth.traits)
    assert not online.seen_cycles
    assert online.estimate(8, 1000, GAMMA, 4.0).spread > 0.3
    follow(online, truth, range(40, 0, -1))
    assert online.seen_cycles
    for batch in (2, 8, 20, 36):
        estimate = online.estimate(batch, 1500, GAMMA, 4.0)
        error = math.log(estimate.speedup / float(speedup(truth, batch, 1500, GAMMA, 4.0)))
        assert abs(error) < max(0.03, 3 * estimate.spread), batch  # it knows how well it knows
        assert estimate.spread < (0.05 if batch >= 8 else 0.15), batch


def test_a_lasting_change_is_followed() -> None:
    truth = DEVICES["pair"]
    online = OnlineRoofline.unknown(truth.constants, truth.traits)
    follow(online, truth, range(40, 0, -1))
    before = online.time(TARGET, 10, 1000, 0)
    for _ in range(4):
        follow(online, truth, range(40, 0, -1), slower=1.5)
    assert online.time(TARGET, 10, 1000, 0) / before == pytest.approx(1.5, rel=0.08)


def test_one_odd_step_moves_little() -> None:
    truth = DEVICES["pair"]
    online = OnlineRoofline.unknown(truth.constants, truth.traits)
    follow(online, truth, range(40, 0, -1))
    before = online.time(TARGET, 10, 1000, 0)
    for _ in range(2):
        online.observe(TARGET, 10, 1000, 0, 50 * before)
    follow(online, truth, range(40, 20, -1))
    assert online.time(TARGET, 10, 1000, 0) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_time_is_ignored(seconds: float) -> None:
    truth = DEVICES["cpu"]
    online = OnlineRoofline.unknown(truth.constants)
    before = online.form
    online.observe(TARGET, 4, 100, 0, seconds)
    assert online.form == before
    assert online.observations[TARGET] == 0


def test_the_constants_are_not_touched() -> None:
    online = OnlineRoofline.unknown(SMALL)
    online.observe(TARGET, 4, 100, 0, 0.05)
    assert online.form.constants is SMALL
