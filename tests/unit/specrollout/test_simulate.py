"""On made-up rollouts: time lost against an oracle, and what the rules for the draft length gain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from april.errors import UsageError
from specrollout.roofline.calibration import read_calibration
from specrollout.roofline.compare import compare_rules
from specrollout.roofline.decisions import DecisionLog, at_moment, read_decisions
from specrollout.roofline.fit import Fitted
from specrollout.roofline.online import OnlineRoofline
from specrollout.roofline.simulate import Outcome, Recorded, Rollout, read_recorded, run_toggle
from specrollout.toggle import (
    Decision,
    FilePredictor,
    OnlinePredictor,
    PaperToggle,
    Toggle,
    ToggleConfig,
    View,
    inputs_of,
)

Fits = Callable[[str], Fitted]
CONFIG = ToggleConfig()
SHORT = Rollout(rounds=2, median_tokens=300, longest=2048)


def run(truth: Fitted, toggle: Toggle | PaperToggle, accepted: float, online: OnlineRoofline | None = None) -> Outcome:
    return run_toggle(truth.form, toggle.decide, accepted, 7, SHORT, CONFIG.switch_cost_s, online=online)


@pytest.mark.parametrize("accepted", [5.0, 6.5])
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


def test_a_run_explains_itself(fitted: Fits, tmp_path: Path) -> None:
    """Each moment's entry in the log holds the state that the engine was in, and the speedup that put it there."""
    toggle, states = Toggle(CONFIG, FilePredictor(fitted("7b").form)), []
    with (tmp_path / "log").open("w") as file:
        log = DecisionLog(file)

        def decide(view: View) -> Decision:
            decision = toggle.decide(view)
            log.record(
                len(states), "0", len(states), "toggle", decision.state, decision.reason, inputs_of(view, decision)
            )
            states.append(decision.state)
            return decision

        run_toggle(fitted("7b").form, decide, 6.0, 7, SHORT)
    entries = read_decisions(tmp_path / "log")
    assert len(entries) < len(states) / 20
    for moment in range(0, len(states), 7):
        (entry,) = at_moment(entries, moment + 0.5)
        assert entry["choice"] == states[moment]
        if entry["time_s"] == entry["since_s"] and moment > 0 and entry["time_s"] > 0:
            assert (entry["inputs"]["speedup"] >= 1.05) == (entry["choice"] == "speculating")


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


def test_rules_on_a_record_of_an_engine(fitted: Fits, tmp_path: Path) -> None:
    """What an engine accepted stands for the made-up shares: few drafts at first, nearly all at the end."""
    counts = [count for way in range(40) for count in [0, 1, 2, *[11] * way] * 20]
    path = tmp_path / "acceptance.json"
    path.write_text(json.dumps({"name": "ours", "gamma": 11, "accepted": counts}))
    record = read_recorded(path)
    first, last = (record.accepted(np.random.default_rng(0), way, 7, 1000) for way in (0.0, 1.0))
    assert first.mean() < 4 < 6 < last.mean() <= 7
    rates = compare_rules(fitted("7b").form, fitted("7b").form, [record])["ours"]
    assert rates["optimal"] > max(rates["fixed 5"], rates["fixed 11"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "an object with gamma"),
        ('{"gamma": 40, "accepted": [1]}', "from 1 to 16"),
        ('{"gamma": 11, "accepted": []}', "accepted must be"),
        ('{"gamma": 11, "accepted": [12]}', "from 0 to gamma, 11"),
        ("{", "acceptance record"),
    ],
)
def test_a_record_that_is_none_is_one_clear_error(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "acceptance.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_recorded(path)


def test_a_record_of_short_drafts_is_refused(fitted: Fits) -> None:
    with pytest.raises(UsageError, match="drafts of 11 tokens are needed, 5 were recorded"):
        compare_rules(fitted("7b").form, fitted("7b").form, [Recorded("short", 5, np.ones(3))])
