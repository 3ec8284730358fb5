import io
import json

import pytest

from april.errors import UsageError
from specrollout.controller import Controller
from specrollout.roofline.calibration import Fingerprint
from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.decisions import DecisionLog
from specrollout.settings import Settings

CONSTANTS = ModelConstants("m", 1, 2.2e9, 0.7e9, 2.1e9, 4.0 * 22 * 2048, 45056.0, 22, 32, 2048, 1.3e8)
RUNNING = Fingerprint("cpu", "m", 1, 2.2e9, 0.7e9)


def controller(log: io.StringIO | None = None, **settings: object) -> Controller:
    made = Settings(**settings)  # type: ignore[arg-type]
    return Controller(made, RUNNING, CONSTANTS, None if log is None else DecisionLog(log), "0", lambda: 1.0)


def run(made: Controller, batch: int, context: float, steps: int, t_draft: float, t_verify: float) -> list[bool]:
    """An engine whose plain step takes 100 ms, and which accepts three quarters of each draft."""
    choices = []
    for _ in range(steps):
        step = made.next(batch, context)
        choices.append(step.speculate)
        if step.speculate:
            accepted = [3 * step.gamma // 4] * batch
            made.cycle(batch, context, accepted, step.gamma, 0.1 * t_draft * step.gamma, 0.1 * t_verify)
        else:
            made.plain(batch, context, 0.1)
    return choices


@pytest.mark.parametrize("toggle", ["on", "off"])
def test_always_and_never(toggle: str):
    steps = run(controller(toggle=toggle), 4, 256, 10, 0.3, 1.1)
    assert steps == [toggle == "on"] * 10


def test_without_a_calibration_it_starts_plain_probes_and_settles_where_speculation_pays():
    steps = run(controller(gamma=4), 2, 256, 400, 0.3, 1.1)
    assert not any(steps[:16])
    assert sum(steps[-200:]) >= 180  # a check of a few plain steps now and then


def test_without_a_calibration_it_stays_plain_where_speculation_does_not_pay():
    steps = run(controller(gamma=4), 2, 256, 600, 0.9, 2.0)
    assert sum(steps) < 30
    assert not any(steps[-50:])


def test_a_calibration_of_something_else_never_speculates(tmp_path):
    (tmp_path / "c.json").write_text("{}")
    made = controller(calibration=str(tmp_path / "c.json"))
    assert not any(run(made, 2, 256, 200, 0.3, 1.1))
    assert str(made.state["refusal"]) in made.next(2, 256).reason


def test_forcing_is_undone_by_auto():
    made = controller(toggle="off")
    made.force("on", 7)
    assert made.next(1, 10).gamma == 7
    made.force("auto", "auto")
    assert not made.next(1, 10).speculate


@pytest.mark.parametrize("wrong", [{"mode": "yes"}, {"gamma": 99}, {"gamma": 0}, {"gamma": "long"}, {"gamma": True}])
def test_a_wrong_request_changes_nothing(wrong: dict[str, object]):
    made = controller(toggle="off")
    with pytest.raises(UsageError):
        made.force(**{"mode": "on", **wrong})  # type: ignore[arg-type]
    assert not made.next(1, 10).speculate


def test_the_ladder_moves_when_weights_change_and_only_then():
    made = controller(toggle="on", gamma="ladder")
    assert made.next(1, 10).gamma == 5
    for expected in (5, 7):
        for _ in range(20):
            made.cycle(1, 10, [5], 5, 0.1, 0.1)
        assert made.next(1, 10).gamma == 5
        for _ in range(3):  # an update comes in parts
            made.weights_changed()
        assert made.next(1, 10).gamma == expected


def test_the_bandit_tries_every_length_and_returns_to_the_best():
    made = controller(toggle="on", gamma="bandit", longest=7)
    seen = []
    for _ in range(16 * 60):
        gamma = made.next(1, 10).gamma
        seen.append(gamma)
        made.cycle(1, 10, [min(gamma, 3)], gamma, 0.01 * gamma, 0.03)
    assert set(seen) == {1, 3, 5, 7}
    assert seen[-480:].count(3) > 240


def test_every_decision_is_in_the_log_with_its_inputs():
    log = io.StringIO()
    run(controller(log, gamma=4), 2, 256, 400, 0.3, 1.1)
    entries = [json.loads(line) for line in log.getvalue().splitlines()]
    toggles = [entry for entry in entries if entry["kind"] == "toggle"]
    assert {entry["choice"] for entry in toggles} == {"plain", "speculating"}
    assert all(entry["inputs"]["batch"] == 2 and entry["reason"] for entry in toggles)
    assert all(entry["inputs"]["shares"] for entry in entries if entry["kind"] == "gamma")


def test_an_engine_that_is_off_learns_nothing_and_spends_nothing_on_it():
    made = controller()
    made.force("off")
    run(made, 4, 256, 300, 0.3, 1.1)
    assert made._online is not None
    assert made._online.fits == 0
    made.force("auto")
    run(made, 4, 256, 30, 0.3, 1.1)
    assert made._online.fits > 0
