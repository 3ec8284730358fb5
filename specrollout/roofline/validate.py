"""How good a model is on a sweep: mean absolute relative errors, and how often the sign of the speedup is right."""

from __future__ import annotations

from typing import Any

import numpy as np

from specrollout.roofline.model import Floats, LatencyModel, cycle_time, speedup
from specrollout.roofline.starved import Starved, starved_rows, without_starved
from specrollout.roofline.sweep import DRAFTER, TARGET, VERIFY, Sweep


def validate(model: LatencyModel, sweep: Sweep, accepted: float | None = None) -> dict[str, Any]:
    """`figures` of all rows, the starved rows, and the figures without them."""
    starved = starved_rows(sweep)
    return {
        **figures(model, sweep, accepted),
        "without_starved": figures(model, without_starved(sweep), accepted),
        "starved": [starved_json(found) for found in starved],
    }


def figures(model: LatencyModel, sweep: Sweep, accepted: float | None = None) -> dict[str, Any]:
    """Errors as fractions, by draft length; `accepted` is L, by default gamma, as for a well-trained policy.

    A cycle counts where T_T, T_D and T_V were measured; `points` is the number of cycles, and the sign is right where
    measured and predicted speedup are on the same side of 1.
    """
    target = sweep.points(TARGET)
    drafter = {g: sweep.points(DRAFTER, g) for g in sweep.gammas}
    verify = {g: sweep.points(VERIFY, g) for g in sweep.gammas}
    cycles = {g: sweep.cycles(g) for g in sweep.gammas}
    right = points = 0
    for gamma, cycle in cycles.items():
        gained = float(gamma) if accepted is None else accepted
        measured = gained * cycle.t_target / cycle.seconds
        predicted = speedup(model, cycle.batch, cycle.context, gamma, gained)
        right += int(np.sum((measured > 1.0) == (predicted > 1.0)))
        points += cycle.seconds.size
    return {
        "t_t_mape": mape(model.t_target(target.batch, target.context), target.seconds),
        "t_d_mape": {str(g): mape(model.t_drafter(p.batch, p.context, g), p.seconds) for g, p in drafter.items()},
        "t_v_mape": {str(g): mape(model.t_verify(p.batch, p.context, g), p.seconds) for g, p in verify.items()},
        "cycle_mape": {str(g): mape(cycle_time(model, c.batch, c.context, g), c.seconds) for g, c in cycles.items()},
        "sign_accuracy": right / points if points else None,
        "points": points,
    }


def mape(predicted: Floats, measured: Floats) -> float | None:
    """Mean absolute relative error; None of nothing."""
    return float(np.mean(np.abs(predicted - measured) / measured)) if measured.size else None


def starved_json(starved: Starved) -> dict[str, Any]:
    """A starved row by names with units."""
    row = starved.row
    return {
        "row": row.line,
        "mode": row.mode,
        "batch": row.batch,
        "seq": row.context,
        "gamma": row.gamma,
        "measured_ms": row.seconds * 1e3,
        "expected_ms": starved.expected_s * 1e3,
        "steps_kept": starved.steps_kept,
    }
