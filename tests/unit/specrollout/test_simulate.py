"""On made-up rollouts: time lost against an oracle, and what the rules for the draft length gain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specrollout.roofline.calibration import read_calibration
from specrollout.roofline.compare import compare_rules
from specrollout.roofline.fit import Fitted
from specrollout.roofline.online import OnlineRoofline
from specrollout.roofline.simulate import Outcome, Rollout, run_toggle
from specrollout.toggle import FilePredictor, OnlinePredictor, PaperToggle, Toggle, ToggleConfig

Fits = Callable[[str], Fitted]
CONFIG = ToggleConfig()
SHORT = Rollout(rounds=2, median_tokens=300, longest=2048)


def run(truth: Fitted, toggle: Toggle | PaperToggle, accepted: float, online: OnlineRoofline | None = None) -> Outcome:
    return run_toggle(truth.form, toggle.decide, accepted, 7, SHORT, CONFIG.switch_cost_s, online=online)


@pytest.mark.parametrize("accepted", [4.0, 5.0, 6.5])
@pytest.mark.parametrize("model", ["7b", "14b"])
def test_regret(fitted: Fits, data: Path, model: str, accepted: float) -> None:
    """With the right model, with the published one, and with none at the start: at most 2% is lost."""
    truth = fitted(model)
    published = read_calibration(data / f"a100_tp1_qwen25{model}.json").model
    online = OnlineRoofline.unknown(truth.form.constants)
    outcomes = {
        "right": run(truth, Toggle(CONFIG, FilePredictor(truth.form)), accepted),
        "published": run(truth, Toggle(CONFIG, FilePredictor(published)), accepted),
        "online": run(truth, Toggle(CONFIG, OnlinePredictor(online)), accepted, online),
    }
    assert {name: o.regret for name, o in outcomes.items() if o.regret > 0.02} == {}
    assert outcomes["right"].regret >= 0


def test_the_boundary_is_crossed_both_ways(fitted: Fits) -> None:
    outcome = run(fitted("7b"), Toggle(CONFIG, FilePredictor(fitted("7b").form)), 6.0)
    assert outcome.switches >= 3
    assert 0.1 < outcome.speculated < 0.9


def test_a_refilled_batch_costs_the_published_toggle(fitted: Fits) -> None:
    truth = fitted("7b")
    published = PaperToggle(truth.form)
    published.start_rollout(6.0, 7)
    ours = run(truth, Toggle(CONFIG, FilePredictor(truth.form)), 6.0)
    assert run(truth, published, 6.0).regret > 0.02 > ours.regret
    assert run(truth, Toggle(CONFIG, None), 6.0).regret > 0.05


def test_rules_for_the_draft_length(fitted: Fits) -> None:
    found = compare_rules(fitted("7b").form, fitted("7b").form)
    for trace, rates in found.items():
        assert rates["optimal"] > max(rates["fixed 5"], rates["fixed 11"], rates["ladder"]), trace
        assert rates["bandit"] > 0.98, trace
    assert found["hard"]["optimal"] > 1.1
