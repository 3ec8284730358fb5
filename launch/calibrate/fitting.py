"""``april calibrate fit`` and ``crossval``."""

from __future__ import annotations

import argparse
import hashlib
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from april.errors import UsageError
from specrollout.roofline.calibration import Calibration, fingerprint_of, write_calibration
from specrollout.roofline.constants import ModelConstants, read_constants, read_json
from specrollout.roofline.crossval import crossval as held_out
from specrollout.roofline.fit import fit as fit_best
from specrollout.roofline.fit_paper import fit_paper
from specrollout.roofline.model import Floats, LatencyModel
from specrollout.roofline.starved import starved_rows
from specrollout.roofline.sweep import DRAFTER, TARGET, Row, Sweep, read_sweep
from specrollout.roofline.validate import validate

from . import text
from .main import output_path


def fit(given: argparse.Namespace) -> str:
    """Fit, write the calibration, and say how good it is."""
    out = output_path(given.out)
    sweep, constants = read_sweep(given.sweep), read_constants(given.constants)
    gemm, gemm_device = _gemm(given.gemm)
    form, names, covariance, cost = _fitted(sweep, constants, gemm, given.form)
    in_sample = validate(form, sweep)
    report = {
        "covariance": {"of": "logarithms of the parameters", "order": names, "matrix": covariance.tolist()},
        "cost": cost,
        "in_sample": in_sample,
        "held_out": held_out(sweep, lambda seen: _fitted(seen, constants, gemm, given.form)[0]),
        "residuals": _residuals(form, sweep),
        "provenance": _provenance(given),
    }
    calibration = Calibration(form, fingerprint_of(constants, given.device or gemm_device), report)
    write_calibration(calibration, out)
    notes = []
    if not calibration.fingerprint.device:
        notes.append("no device named: no engine will use it; give --device")
    if sweep.model != constants.name:
        notes.append(
            f"the sweep is of {sweep.model}, the constants of {constants.name or 'no named model'}: is that right?"
        )
    title = f"{out}: {given.form} form of {sweep.model}, in sample, at L = gamma"
    return "\n".join([text.figures(title, in_sample), *notes])


def crossval(given: argparse.Namespace) -> str:
    """Errors on held-out rows, per split."""
    sweep, constants = read_sweep(given.sweep), read_constants(given.constants)
    gemm, _ = _gemm(given.gemm)
    found = held_out(sweep, lambda seen: _fitted(seen, constants, gemm, given.form)[0], given.l_accept)
    if not found:
        raise UsageError(f"sweep {given.sweep} has no rows to hold out: gammas between others, B > 16, or S > 1024")
    if given.json:
        return json.dumps(found, indent=1)
    titles = {"gamma": "draft lengths between the fitted ones", "batch": "B > 16", "context": "S > 1024"}
    return "\n\n".join(text.figures(f"held out: {titles[name]}", figures) for name, figures in found.items())


def _fitted(
    sweep: Sweep, constants: ModelConstants, gemm: float | None, form: str
) -> tuple[Any, list[str], Floats, float]:
    """The form, the names of its fitted parameters, the covariance of their logarithms, and the cost."""
    if form == "paper":
        paper = fit_paper(sweep, constants, gemm)
        return paper.form, list(paper.names), paper.covariance, paper.cost
    best = fit_best(sweep, constants, gemm)
    return best.form, [p.name for p in best.form.table], best.covariance, best.cost


def _gemm(path: Path | None) -> tuple[float | None, str]:
    """FLOP/s of large products, and the device that it was measured on."""
    if path is None:
        return None, ""
    found = read_json(path, "GEMM file")
    tflops = found.get("F_eff_hardware_tflops")
    if not isinstance(tflops, int | float) or not 0 < tflops < float("inf"):
        raise UsageError(f"GEMM file {path}: F_eff_hardware_tflops is {tflops!r}; a positive number is expected")
    return 1e12 * tflops, str(found.get("gpu", ""))


def _residuals(model: LatencyModel, sweep: Sweep) -> dict[str, Any]:
    lines = {found.row.line for found in starved_rows(sweep)}
    rows = [
        [r.line, r.mode, r.batch, r.context, r.gamma, 1e3 * r.seconds, 1e3 * _predicted(model, r), r.line in lines]
        for r in sweep.rows
    ]
    return {"columns": ["row", "mode", "batch", "seq", "gamma", "measured_ms", "predicted_ms", "starved"], "rows": rows}


def _predicted(model: LatencyModel, row: Row) -> float:
    if row.mode == TARGET:
        return float(model.t_target(row.batch, row.context))
    predict = model.t_drafter if row.mode == DRAFTER else model.t_verify
    return float(predict(row.batch, row.context, row.gamma))


def _provenance(given: argparse.Namespace) -> dict[str, Any]:
    files = {"sweep": given.sweep, "constants": given.constants, "gemm": given.gemm}
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": "april calibrate fit",
        "form": given.form,
        **{name: _file(path) for name, path in files.items() if path is not None},
    }


def _file(path: Path) -> dict[str, str]:
    return {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
