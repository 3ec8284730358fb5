"""Devices and models that do not exist, and sweeps of them: our form with chosen parameters and noise on each step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.measure import Grid, measure, write_sweep
from specrollout.roofline.parameters import parameters
from specrollout.roofline.physical import PhysicalForm
from specrollout.roofline.sweep import DRAFTER, TARGET, Sweep, read_sweep
from specrollout.roofline.tiles import EngineTraits

SMALL = ModelConstants(
    name="Small-135M",
    tp=1,
    target_bytes=326e6,
    drafter_bytes=166e6,
    dense_flop=269e6,
    attention_flop=30 * 4 * 576,
    kv_bytes=30 * 2 * 2 * 192,
    layers=30,
    heads=9,
    width=576,
    head_bytes=57e6,
)
HALF_OF_7B = ModelConstants(
    name="Half-7B",
    tp=2,
    target_bytes=7.6e9,
    drafter_bytes=2.7e9,
    dense_flop=7.07e9,
    attention_flop=2e5,
    kv_bytes=28672,
    layers=28,
    heads=14,
    width=3584,
    head_bytes=5.45e8,
)
CPU = {
    "bandwidth_bytes_per_s": 2e10,
    "dense_flop_per_s": 3e11,
    "quantized_flop_per_s": 1e11,
    "launch_s_per_layer": 2e-4,
    "drafter_launch_s_per_layer": 1e-4,
    "request_s": 5e-4,
    "drafter_request_s": 3e-4,
    "attention_tiles": 2.0,
}
FAST_PAIR = {
    "bandwidth_bytes_per_s": 3.5e12,
    "dense_flop_per_s": 6e14,
    "quantized_flop_per_s": 3e14,
    "link_bytes_per_s": 1e11,
    "kv_reread": 1.0,
    "attention_tiles": 130.0,
}
PLAIN = EngineTraits("sizes", shared_prefix=False)


def form(constants: ModelConstants, values: dict[str, float], traits: EngineTraits = PLAIN) -> PhysicalForm:
    """Our form with some parameters chosen, the rest as expected."""
    logs = [np.log(values.get(p.name, p.start)) for p in parameters(constants.tp)]
    return PhysicalForm(constants, traits, tuple(map(float, logs)))


def sweep_of(truth: PhysicalForm, grid: Grid, path: Path, noise: float = 0.02) -> Sweep:
    """A sweep of the form, by way of a file."""
    random = np.random.default_rng(3)

    def step(mode: str, batch: int, context: int, gamma: int) -> float:
        if mode == TARGET:
            seconds = truth.t_target(batch, context)
        else:
            seconds = (truth.t_drafter if mode == DRAFTER else truth.t_verify)(batch, context, gamma)
        return float(seconds) * float(np.exp(random.normal(0, noise)))

    write_sweep(measure(step, grid, truth.constants.name), path)
    return read_sweep(path)
