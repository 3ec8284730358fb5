"""What rounds have taught, kept on the data source, so that it lives as long as the data source and its checkpoints do.

A run that goes on from a checkpoint schedules as the one before would have: it knows how long responses are, which
prompts have short ones, and what leg budget kept the engines busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from april.history import LengthHistory
from april.legs import AutoBudget
from april.oversampling import LengthSample
from april.telemetry.offpolicy import LengthTrend

KINDS: Mapping[str, Any] = {
    "length_history": LengthHistory,
    "length_sample": LengthSample,
    "leg_budget": AutoBudget,
    "length_trend": LengthTrend,
}
"""By the name of the data source's attribute."""


def to_dict(data_source: Any) -> dict[str, Any]:
    """For a checkpoint, as JSON: what there is of it."""
    return {name: getattr(data_source, name).to_dict() for name in KINDS if hasattr(data_source, name)}


def restore(data_source: Any, state: Mapping[str, Any]) -> None:
    """Set what a checkpoint holds; one of an earlier version holds nothing, and rounds teach it anew."""
    for name, data in state.items():
        if name in KINDS:
            setattr(data_source, name, KINDS[name].restore(data))
