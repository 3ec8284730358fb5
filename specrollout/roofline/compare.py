"""The toggles and the rules for the draft length side by side on `simulate.py`'s made-up rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from april.errors import UsageError
from specrollout.roofline.model import LatencyModel
from specrollout.roofline.online import OnlineRoofline
from specrollout.roofline.paper import PaperForm
from specrollout.roofline.physical import PhysicalForm
from specrollout.roofline.simulate import FIXED, RULES, TRACES, Outcome, Recorded, Trace, run_gamma, run_toggle
from specrollout.toggle import FilePredictor, OnlinePredictor, PaperToggle, Toggle, ToggleConfig

GAMMA = 7


def compare_toggles(known: PhysicalForm | PaperForm, truth: LatencyModel, accepted: float) -> dict[str, dict[str, Any]]:
    """Each toggle with what it knows; the online one knows the model's constants only, so it needs our form."""
    config = ToggleConfig()
    toggles: dict[str, tuple[Toggle | PaperToggle, OnlineRoofline | None]] = {
        "calibrated": (Toggle(config, FilePredictor(known)), None),
        "published": (PaperToggle(known), None),
        "never": (Toggle(config, None), None),
    }
    if isinstance(known, PhysicalForm):
        online = OnlineRoofline.unknown(known.constants)
        toggles["online, no file"] = (Toggle(config, OnlinePredictor(online)), online)
    found = {}
    for name, (toggle, online_model) in toggles.items():
        if isinstance(toggle, PaperToggle):
            toggle.start_rollout(accepted, GAMMA)
        outcome = run_toggle(
            truth, toggle.decide, accepted, GAMMA, switch_cost_s=config.switch_cost_s, online=online_model
        )
        found[name] = _outcome_json(outcome)
    return found


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "regret": outcome.regret,
        "switches": outcome.switches,
        "speculated": outcome.speculated,
        "seconds": outcome.seconds,
        "oracle_s": outcome.oracle_s,
    }


def compare_rules(
    known: LatencyModel, truth: LatencyModel, recorded: Sequence[Recorded] = ()
) -> dict[str, dict[str, float]]:
    """Tokens per second of each rule over those of a fixed draft length of 5, for each acceptance trace and record.

    Raises:
        UsageError: for a record of drafts shorter than the longest fixed one.
    """
    found = {}
    for record in recorded:
        if record.longest < FIXED[-1]:
            raise UsageError(f"{record.name}: drafts of {FIXED[-1]} tokens are needed, {record.longest} were recorded")
    traces: list[Trace | Recorded] = [*TRACES, *recorded]
    for trace in traces:
        rates = {rule: run_gamma(truth, known, trace, rule) for rule in RULES}
        found[trace.name] = {rule: rate / rates[RULES[0]] for rule, rate in rates.items()}
    return found
