"""When to speculate: thresholds, the price of switching, probes, refusals, and the published toggle."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import HALF_OF_7B, SMALL, form

from specrollout.roofline.calibration import Calibration, fingerprint_of, read_calibration, write_calibration
from specrollout.roofline.online import Estimate
from specrollout.toggle import (
    Decision,
    FilePredictor,
    PaperToggle,
    Toggle,
    ToggleConfig,
    View,
    toggle_for,
)

VIEW = View(batch=8, context=1000.0, gamma=7, accepted=5.0)
FREE = ToggleConfig(switch_cost_s=0.0)


class Told:
    """A predictor that says what the test tells it: T_T is 10 ms, a cycle as long as the speedup asks."""

    def __init__(self, speedup: float = 1.0, spread: float = 0.0, is_known: bool = True) -> None:
        self.speedup, self.spread, self.is_known = speedup, spread, is_known

    def estimate(self, view: View) -> Estimate:
        return Estimate(self.speedup, self.spread)

    def seconds(self, view: View) -> tuple[float, float]:
        return 0.01, 0.01 * view.accepted / self.speedup

    def known(self, estimate: Estimate, spread_limit: float) -> bool:
        return self.is_known and estimate.spread <= spread_limit


def states(toggle: Toggle, told: Told, speedups: list[float]) -> list[bool]:
    found = []
    for told.speedup in speedups:
        found.append(toggle.decide(VIEW).speculate)
    return found


def test_on_and_off_with_a_band_between() -> None:
    told = Told()
    found = states(Toggle(FREE, told), told, [1.0, 1.049, 1.05, 1.03, 1.02, 1.019, 1.04, 1.05])
    assert found == [False, False, True, True, True, False, False, True]


def test_a_switch_waits_until_it_pays() -> None:
    told = Told(speedup=1.25)
    toggle = Toggle(ToggleConfig(switch_cost_s=0.005), told)
    # Speculation saves 10 ms * (1 - 1 / 1.25) = 2 ms a step.
    assert [toggle.decide(VIEW).speculate for _ in range(4)] == [False, False, True, True]
    told.speedup = 0.98  # a cycle is 10 ms * 5 / 0.98, plain steps would save 2% of it, 1.02 ms
    assert [toggle.decide(VIEW).speculate for _ in range(6)] == [True, True, True, True, False, False]


def test_savings_that_do_not_last_are_forgotten() -> None:
    told = Told()
    toggle = Toggle(ToggleConfig(switch_cost_s=0.005), told)
    assert not any(states(toggle, told, [1.25, 1.25, 1.0] * 10))


def test_without_a_model_never() -> None:
    toggle = Toggle(FREE, None, "the calibration is of device A")
    decision = toggle.decide(VIEW)
    assert decision == Decision(False, "plain", False, "the calibration is of device A")


def test_probes_are_short_and_become_rarer() -> None:
    config = ToggleConfig(probe_cycles=3, probe_wait_steps=10)
    toggle = Toggle(config, Told(speedup=1.2, spread=0.5, is_known=False))
    found = [toggle.decide(VIEW) for _ in range(200)]
    runs = [(on, len(list(group))) for on, group in itertools.groupby(d.speculate for d in found)]
    assert runs == [
        (False, 10),
        (True, 3),
        (False, 10),
        (True, 3),
        (False, 20),
        (True, 3),
        (False, 40),
        (True, 3),
        (False, 80),
        (True, 3),
        (False, 25),
    ]
    assert {d.state for d in found} == {"plain", "probing"}


def test_no_probe_where_it_cannot_pay() -> None:
    toggle = Toggle(ToggleConfig(probe_wait_steps=1), Told(speedup=0.5, spread=0.2, is_known=False))
    assert not any(toggle.decide(VIEW).speculate for _ in range(50))


def test_what_becomes_uncertain_is_switched_off() -> None:
    told = Told(speedup=1.3)
    toggle = Toggle(FREE, told)
    assert toggle.decide(VIEW).speculate
    told.spread = 0.1  # more than it takes to switch on, less than it takes to switch off
    assert toggle.decide(VIEW).speculate
    told.spread = 0.2
    assert not toggle.decide(VIEW).speculate


def test_no_request_no_speculation() -> None:
    assert not Toggle(FREE, Told(speedup=2.0)).decide(replace(VIEW, batch=0)).speculate


@pytest.mark.parametrize(
    "wrong",
    [
        {"band": -0.1},
        {"band": 2.0},
        {"switch_cost_s": -1.0},
        {"threshold": 0.0},
        {"spread_on": 0.2},
        {"probe_cycles": 0},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        ToggleConfig(**wrong)  # type: ignore[arg-type]


def test_an_engine_with_a_file_without_one_and_with_a_wrong_one(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    running = fingerprint_of(SMALL, "Device A")
    write_calibration(Calibration(form(SMALL, {}), running), path)
    view = View(1, 100.0, 3, 3.9)

    toggle, online = toggle_for(FREE, path, running, SMALL)
    assert online is None
    assert toggle.decide(view).speedup is not None

    toggle, online = toggle_for(FREE, None, running, SMALL)
    assert online is not None
    assert "not known yet" in toggle.decide(view).reason

    toggle, online = toggle_for(FREE, path, fingerprint_of(HALF_OF_7B, "Device A"), HALF_OF_7B)
    assert online is None
    assert toggle.decide(view) == Decision(
        False, "plain", False, "the calibration is of tensor parallelism 1, this is 2"
    )

    path.write_text("{")
    toggle, _ = toggle_for(FREE, path, running, SMALL)
    assert not toggle.decide(view).speculate
    assert "is no JSON" in toggle.decide(view).reason
    assert toggle_for(FREE, None, running, None)[0].decide(view).reason == "no calibration"


def published(data: Path) -> PaperToggle:
    toggle = PaperToggle(read_calibration(data / "a100_tp1_qwen257b.json").model)
    toggle.start_rollout(5.0, 5)
    return toggle


def decide(toggle: PaperToggle, batches: list[int], gamma: int = 5) -> list[bool]:
    return [toggle.decide(View(batch, 2048.0, gamma, 99.0)).speculate for batch in batches]


def test_published_toggle_goes_on_once_and_stays(data: Path) -> None:
    # 31.8 is the published boundary at S 2048, gamma 5.
    assert decide(published(data), [64, 64, 32, 31, 31, 64, 128]) == [False, False, False, True, True, True, True]


def test_published_guard_and_reset(data: Path) -> None:
    toggle = published(data)
    assert decide(toggle, [8, 32, 8, 1]) == [False] * 4  # never more than 32
    assert decide(toggle, [33, 8]) == [False, True]
    toggle.start_rollout(5.0, 5)
    assert decide(toggle, [8, 8]) == [False, False]


def test_published_toggle_takes_l_of_the_last_rollout_at_the_same_length(data: Path) -> None:
    low = published(data)
    low.start_rollout(1.5, 5)
    assert decide(low, [64, 8]) == [False, False]
    assert decide(low, [64, 8], gamma=7)[-1]  # another length: L is taken to be gamma


def test_published_toggle_without_a_model() -> None:
    assert decide(PaperToggle(None), [64, 8, 1]) == [False] * 3


def test_file_predictor_agrees_with_the_model() -> None:
    predictor = FilePredictor(form(SMALL, {}))
    plain, cycle = predictor.seconds(VIEW)
    assert predictor.estimate(VIEW).speedup == pytest.approx(VIEW.accepted * plain / cycle)
