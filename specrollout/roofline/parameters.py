"""The parameters of our form: unit, range, and what is expected before anything is measured. All are positive.

The expectations are broad facts of accelerators, not results of a sweep: a fit departs from them as far as its rows
say so, and they decide only where the rows say nothing. `spread` is the standard deviation of the logarithm of the
parameter around `start`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specrollout.roofline.model import Floats


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: where its fit starts, the range it may take, and its meaning."""

    name: str
    unit: str
    start: float
    low: float
    high: float
    spread: float
    meaning: str


PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        "launch_s_per_layer", "s", 15e-6, 1e-7, 1e-1, 1.0, "fixed time of a layer of the target: launches, norms"
    ),
    Parameter("bandwidth_bytes_per_s", "byte/s", 1.5e12, 1e8, 1e14, 9.0, "memory bandwidth that a step reaches"),
    Parameter("dense_flop_per_s", "FLOP/s", 2.4e14, 1e9, 1e17, 9.0, "16-bit matrix throughput that a step reaches"),
    Parameter("tile_share", "1", 0.7, 0.05, 1.0, 0.3, "share of the padding to whole tiles that costs time"),
    Parameter(
        "kv_reread", "1", 0.5, 0.02, 2.0, 0.3, "bytes of KV read for each request after the first, over its size"
    ),
    Parameter("request_s", "s", 20e-6, 1e-9, 1e-1, 0.5, "time of one more request in a pass of the target"),
    Parameter(
        "attention_s_per_token", "s", 23e-9, 1e-12, 1e-3, 2.0, "verify: one tile passes one token of context, per layer"
    ),
    Parameter("attention_tiles", "1", 60.0, 1.0, 4000.0, 0.5, "attention tiles that cost no more time than one"),
    Parameter(
        "share_s_per_layer", "s", 15e-6, 1e-9, 1e-1, 1.0, "fixed time of reading a shared prefix once and merging"
    ),
    Parameter("drafter_launch_s_per_layer", "s", 40e-6, 1e-7, 1e-1, 1.0, "fixed time of a layer of the drafter"),
    Parameter(
        "quantized_traffic", "1", 1.3, 0.3, 4.0, 0.2, "bytes that a 4-bit product moves, over the size of its weights"
    ),
    Parameter(
        "dequantize", "1", 0.8, 0.05, 4.0, 0.3, "unpacking of 4-bit weights, over the time to read them; per block"
    ),
    Parameter("quantized_flop_per_s", "FLOP/s", 1.2e14, 1e9, 1e17, 9.0, "throughput of the 4-bit matrix products"),
    Parameter("drafter_request_s", "s", 10e-6, 1e-9, 1e-1, 1.0, "time of one more request in a drafter step"),
    Parameter(
        "drafter_batch_s_per_layer", "s", 6e-6, 1e-9, 1e-1, 1.0, "fixed time per layer once there is a second request"
    ),
)
LINK = Parameter("link_bytes_per_s", "byte/s", 2e11, 1e7, 1e14, 1.0, "TP > 1: bytes per second of an all-reduce")


def parameters(tp: int) -> tuple[Parameter, ...]:
    """The parameters at this tensor parallelism: the link counts from two devices on."""
    return PARAMETERS if tp == 1 else (*PARAMETERS, LINK)


def start_vector(table: tuple[Parameter, ...]) -> Floats:
    """Logarithms of the expected values."""
    return np.log([p.start for p in table])


def bounds(table: tuple[Parameter, ...]) -> tuple[Floats, Floats]:
    """Logarithms of the ranges."""
    return np.log([p.low for p in table]), np.log([p.high for p in table])


def spreads(table: tuple[Parameter, ...]) -> Floats:
    """Standard deviations of the logarithms."""
    return np.array([p.spread for p in table])
