"""What a latency model offers, and what follows from it: cycle time, speedup, the batch where speculation stops paying.

Knows no form, no file and no engine.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
FloatLike = float | Floats


class LatencyModel(Protocol):
    """Seconds of one forward pass; every argument may be an array, and they broadcast."""

    def t_target(self, batch: FloatLike, context: FloatLike) -> Floats:
        """T_T(B, S): the target decodes one token for each request."""
        ...

    def t_drafter(self, batch: FloatLike, context: FloatLike, gamma: FloatLike) -> Floats:
        """T_D(B, S): the drafter decodes one token for each request, in an engine whose cycles have gamma drafts."""
        ...

    def t_verify(self, batch: FloatLike, context: FloatLike, gamma: FloatLike) -> Floats:
        """T_V(B, S, gamma): the target reads gamma + 1 tokens of each request."""
        ...


def floats(value: Any) -> Floats:
    """The argument as an array of floats."""
    return np.asarray(value, dtype=np.float64)


def cycle_time(model: LatencyModel, batch: FloatLike, context: FloatLike, gamma: FloatLike) -> Floats:
    """Seconds of one speculative cycle: gamma T_D + T_V."""
    return floats(gamma) * model.t_drafter(batch, context, gamma) + model.t_verify(batch, context, gamma)


def speedup(model: LatencyModel, batch: FloatLike, context: FloatLike, gamma: FloatLike, accepted: FloatLike) -> Floats:
    """L / (gamma r + v) with r = T_D / T_T, v = T_V / T_T: tokens per second with speculation, over those without."""
    return floats(accepted) * model.t_target(batch, context) / cycle_time(model, batch, context, gamma)


def boundary_batch(
    model: LatencyModel, context: float, gamma: int, accepted: float, threshold: float = 1.05, limit: float = 1024.0
) -> float:
    """The largest B in [1, limit] up to which the speedup reaches the threshold, to 1e-4; 0 where it never does.

    Steps of the model (tiles, padded graphs) can lift the speedup again above that B: the first crossing counts.
    """
    grid = np.unique(
        np.concatenate([np.arange(1.0, min(limit, 64.0), 0.25), np.geomspace(min(limit, 64.0), limit, 400)])
    )
    below = np.flatnonzero(speedup(model, grid, context, gamma, accepted) < threshold)
    if below.size == 0:
        return limit
    if below[0] == 0:
        return 0.0
    low, high = float(grid[below[0] - 1]), float(grid[below[0]])
    while high - low > 1e-4:
        middle = (low + high) / 2
        if float(speedup(model, middle, context, gamma, accepted)) < threshold:
            high = middle
        else:
            low = middle
    return low
