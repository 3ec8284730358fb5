"""The calibration file: a fitted form with the model and the device that it belongs to, written whole or not at all.

Reads what `april calibrate fit` writes, and the published configurations. A file is used only by an engine whose
device and model it names: `mismatch` says why not.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from april.errors import UsageError
from specrollout.roofline.constants import ModelConstants, constants_from, read_json
from specrollout.roofline.model import Floats, LatencyModel
from specrollout.roofline.paper import PaperForm
from specrollout.roofline.parameters import parameters as parameters_of
from specrollout.roofline.physical import PhysicalForm
from specrollout.roofline.tiles import GRAPH_PADDINGS, EngineTraits

FORMAT = "specrollout-calibration-1"
BYTES_TOLERANCE = 0.01  # weights of the same model counted by two tools


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a calibration belongs to. `device` is the name that the driver gives, or a part of it."""

    device: str
    model: str
    tp: int
    target_bytes: float
    drafter_bytes: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A form and what it belongs to; `report` is the rest of the file: covariance, residuals, errors, provenance."""

    form: PhysicalForm | PaperForm
    fingerprint: Fingerprint
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> LatencyModel:
        """The form, as what it is used for."""
        return self.form

    def covariance(self) -> Floats | None:
        """Covariance of the logarithms of the parameters, in their order; None where the file holds none that fits."""
        found = self.report.get("covariance")
        if isinstance(self.form, PaperForm) or not isinstance(found, dict):
            return None
        names = [p.name for p in self.form.table]
        try:
            matrix = np.array(found["matrix"], dtype=float)
        except (KeyError, TypeError, ValueError):
            return None
        sound = (
            found.get("order") == names and matrix.shape == (len(names), len(names)) and bool(np.isfinite(matrix).all())
        )
        return matrix if sound else None

    def mismatch(self, running: Fingerprint) -> str | None:
        """Why an engine must not use this file; None where it may."""
        ours = self.fingerprint
        if not ours.device:
            return "the calibration names no device: fit it with --device or --gemm"
        if not _same_device(ours.device, running.device):
            return f"the calibration is of device {ours.device}, this is {running.device or 'unknown'}"
        if ours.tp != running.tp:
            return f"the calibration is of tensor parallelism {ours.tp}, this is {running.tp}"
        if _plain(ours.model) != _plain(running.model):
            return f"the calibration is of model {ours.model}, this is {running.model}"
        for what in ("target_bytes", "drafter_bytes"):
            theirs, mine = getattr(running, what), getattr(ours, what)
            if abs(theirs / mine - 1.0) > BYTES_TOLERANCE:
                return f"the calibration is of {what.replace('_', ' ')} {mine:.4g}, this has {theirs:.4g}"
        return None

    def as_json(self) -> dict[str, Any]:
        """The file's content: the form, what it belongs to, and the report."""
        return {
            "format": FORMAT,
            "form": "paper" if isinstance(self.form, PaperForm) else "best",
            "fingerprint": asdict(self.fingerprint),
            **_form_json(self.form),
            **self.report,
        }


def fingerprint_of(constants: ModelConstants, device: str) -> Fingerprint:
    """What a fit with these constants on this device belongs to."""
    return Fingerprint(device, constants.name, constants.tp, constants.target_bytes, constants.drafter_bytes)


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write the file whole, or leave what was there."""
    text = json.dumps(calibration.as_json(), indent=1, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def read_calibration(path: Path) -> Calibration:
    """A calibration of ours or a published configuration; one line for a file that is neither."""
    found = read_json(path, "calibration")
    try:
        if found.get("format") == FORMAT:
            return _ours(found)
        if {"hardware", "model", "calibration"} <= found.keys():
            return _published(found, f"calibration {path}")
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"calibration {path} is damaged: {type(error).__name__} {error}") from error
    raise UsageError(f"calibration {path} is neither of format {FORMAT} nor a published configuration")


def _form_json(form: PhysicalForm | PaperForm) -> dict[str, Any]:
    if isinstance(form, PaperForm):
        return {"parameters": asdict(form)}
    return {
        "parameters": dict(form.values),
        "units": {p.name: p.unit for p in form.table},
        "meaning": {p.name: p.meaning for p in form.table},
        "engine": form.traits.as_json(),
        "constants": form.constants.as_json(),
    }


def _ours(found: dict[str, Any]) -> Calibration:
    fingerprint = Fingerprint(**found["fingerprint"])
    known = {"format", "form", "fingerprint", "parameters", "units", "meaning", "engine", "constants"}
    report = {name: value for name, value in found.items() if name not in known}
    parameters = {name: _finite(value, name) for name, value in found["parameters"].items()}
    if found["form"] == "paper":
        return Calibration(PaperForm(**parameters), fingerprint, report)
    if found["form"] != "best":
        raise ValueError(f"form {found['form']!r}; paper or best is expected")
    traits = EngineTraits(**found["engine"])
    if traits.graph_padding not in GRAPH_PADDINGS:
        raise ValueError(f"graph_padding {traits.graph_padding!r}")
    constants = ModelConstants(**found["constants"])
    return Calibration(PhysicalForm(constants, traits, _logs(constants, parameters)), fingerprint, report)


def _logs(constants: ModelConstants, values: dict[str, float]) -> tuple[float, ...]:
    names = [p.name for p in parameters_of(constants.tp)]
    for name in names:
        if not values[name] > 0:
            raise ValueError(f"{name} is {values[name]}; positive is expected")
    return tuple(float(np.log(values[name])) for name in names)


def _published(found: dict[str, Any], where: str) -> Calibration:
    hardware, fitted = found["hardware"], found["calibration"]
    constants = constants_from({**found["model"], "tp": hardware["tp"]}, where)
    value = {
        name: _finite(number, name)
        for name, number in {**hardware, **fitted}.items()
        if not isinstance(number, str | dict)
    }
    form = PaperForm(
        target_bytes=constants.target_bytes,
        drafter_bytes=constants.drafter_bytes,
        dense_flop=constants.dense_flop,
        attention_flop=constants.attention_flop,
        bandwidth_bytes_per_s=value["BW_eff"],
        throughput_flop_per_s=value["F_eff"],
        kv_bytes=value["kappa_eff"],
        drafter_bytes_factor=value["eta_d"],
        target_overhead_us=value["c_T"],
        drafter_overhead_us=value["c_D"],
        verify_overhead_us=value["c_V"],
        verify_kv_growth=value.get("beta", 0.0),
        communication_s=value.get("c_comm", 0.0),
    )
    return Calibration(form, fingerprint_of(constants, str(hardware["gpu"])), {"metadata": found.get("metadata", {})})


def _finite(value: Any, name: str) -> float:
    number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{name} is {value!r}; a number >= 0 is expected")
    return number


def _plain(name: str) -> str:
    """A model's name without its organisation, its case and its punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())


def _same_device(one: str, other: str) -> bool:
    """Whether the words of the shorter name are all in the longer one: A100 is NVIDIA A100-SXM4-80GB."""
    left, right = (set(re.findall(r"[a-z0-9]+", name.lower())) for name in (one, other))
    return bool(left and right) and (left <= right or right <= left)
