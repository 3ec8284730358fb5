"""``april calibrate validate|predict|plot|simulate|explain``: what a calibration or a log says."""

from __future__ import annotations

import argparse
import json
from typing import Any

from april.errors import UsageError
from specrollout.roofline import decisions
from specrollout.roofline.calibration import read_calibration
from specrollout.roofline.model import boundary_batch, cycle_time, speedup
from specrollout.roofline.sweep import read_sweep
from specrollout.roofline.validate import validate as measure_errors

from . import text
from .main import output_path

THRESHOLD = 1.05


def validate(given: argparse.Namespace) -> str:
    """Errors of a calibration on a sweep."""
    found = measure_errors(read_calibration(given.config).model, read_sweep(given.sweep), given.l_accept)
    if given.json:
        return json.dumps(found, indent=1)
    return text.figures(f"{given.config} on {given.sweep}", found) + "\n" + text.starved_rows(found)


def predict(given: argparse.Namespace) -> str:
    """Times, speedup and boundary at one point."""
    model, gained = read_calibration(given.config).model, given.l_accept or float(given.gamma)
    predicted = float(speedup(model, given.batch, given.seq, given.gamma, gained))
    found = {
        "t_t_ms": 1e3 * float(model.t_target(given.batch, given.seq)),
        "t_d_ms": 1e3 * float(model.t_drafter(given.batch, given.seq, given.gamma)),
        "t_v_ms": 1e3 * float(model.t_verify(given.batch, given.seq, given.gamma)),
        "cycle_ms": 1e3 * float(cycle_time(model, given.batch, given.seq, given.gamma)),
        "l_accept": gained,
        "speedup": predicted,
        "speculate": predicted >= THRESHOLD,
        "boundary_batch": boundary_batch(model, given.seq, given.gamma, gained, THRESHOLD),
    }
    if given.json:
        return json.dumps(found, indent=1)
    return "\n".join(
        f"{name:<15} {value:.4g}" if isinstance(value, float) else f"{name:<15} {value}"
        for name, value in found.items()
    )


def plot(given: argparse.Namespace) -> str:
    """A picture of a calibration."""
    from specrollout.roofline.plot import plot as draw

    out = output_path(given.out)
    if out.suffix.lower() != ".png":
        raise UsageError(f"--out {out}: a name that ends in .png is expected")
    model = read_calibration(given.config).model
    draw(model, read_sweep(given.sweep) if given.sweep else None, given.l_accept, out)
    return f"{out} written"


def simulate(given: argparse.Namespace) -> str:
    """Toggles against an oracle, and rules for the draft length against each other, on made-up rollouts."""
    from specrollout.roofline.compare import compare_rules, compare_toggles
    from specrollout.roofline.simulate import read_recorded

    recorded = [read_recorded(path) for path in given.acceptance or ()]
    known = read_calibration(given.config)
    truth = read_calibration(given.truth) if given.truth else known
    found: dict[str, Any] = {
        "toggles": compare_toggles(known.form, truth.form, given.l_accept or 6.0),
        "draft_lengths": compare_rules(known.model, truth.model, recorded),
    }
    if given.json:
        return json.dumps(found, indent=1)
    lines = ["toggle                regret  switches  speculated"]
    lines += [
        f"{n:<20} {t['regret']:7.2%} {t['switches']:9} {t['speculated']:11.0%}" for n, t in found["toggles"].items()
    ]
    rules = list(next(iter(found["draft_lengths"].values())))
    lines += ["", "tokens/s over fixed 5 " + "".join(f"{rule:>10}" for rule in rules)]
    lines += [f"{n:<22}" + "".join(f"{r[rule]:10.3f}" for rule in rules) for n, r in found["draft_lengths"].items()]
    return "\n".join(lines)


def explain(given: argparse.Namespace) -> str:
    """Why each engine did what it did at a moment."""
    moment_s = decisions.parse_moment(given.at)
    entries = decisions.read_decisions(given.log)
    found = decisions.at_moment(entries, moment_s)
    if not found:
        first = entries[0]["time_s"]
        raise UsageError(f"decision log {given.log} begins at {first}, {first - moment_s:.1f} s after --at {given.at}")
    return json.dumps(found, indent=1) if given.json else "\n".join(decisions.explain(e, moment_s) for e in found)
