"""A latency model corrected near what was measured: no form is right everywhere, and the engine shows where it is not.

What measured steps left over, log measured - log predicted, holds for the steps around them: a prediction is moved by
the mean of these residuals, weighted by distance in log B, log S and log (gamma + 1), and by how old they are. A weight
of :data:`PRIOR` speaks for no correction, so that far from every measurement the form stands as it is (kernel
regression of the residuals, Nadaraya and Watson, shrunk to zero).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specrollout.roofline.model import FloatLike, Floats, LatencyModel, floats
from specrollout.roofline.sweep import DRAFTER, TARGET, VERIFY

PRIOR = 0.1
REACH = np.array([0.35, 0.7, 0.35])  # doublings of B, of S and of gamma + 1 within which a residual holds
MOST = 0.7  # of a correction: twice either way is no longer the same engine

Residual = tuple[float, float, float, float, float]
"""B, S, gamma, log measured - log predicted, weight."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """``form``, moved by the residuals of each mode: an array [residuals, 5] with B, S and gamma + 1 as log2."""

    form: LatencyModel
    residuals: Mapping[str, Floats]

    @classmethod
    def of(cls, form: LatencyModel, residuals: Mapping[str, Sequence[Residual]]) -> Corrected:
        """From plain values."""
        rows = {mode: floats(some).reshape(-1, 5) for mode, some in residuals.items()}
        for table in rows.values():
            table[:, 2] += 1
            table[:, :3] = np.log2(np.maximum(1.0, table[:, :3]))
        return cls(form, rows)

    def t_target(self, batch: FloatLike, context: FloatLike) -> Floats:
        """T_T(B, S) in seconds."""
        return floats(self.form.t_target(batch, context) * self._factor(TARGET, batch, context, 0.0))

    def t_drafter(self, batch: FloatLike, context: FloatLike, gamma: FloatLike) -> Floats:
        """T_D(B, S) in seconds."""
        return floats(self.form.t_drafter(batch, context, gamma) * self._factor(DRAFTER, batch, context, gamma))

    def t_verify(self, batch: FloatLike, context: FloatLike, gamma: FloatLike) -> Floats:
        """T_V(B, S, gamma) in seconds."""
        return floats(self.form.t_verify(batch, context, gamma) * self._factor(VERIFY, batch, context, gamma))

    def _factor(self, mode: str, batch: FloatLike, context: FloatLike, gamma: FloatLike) -> Floats:
        table = self.residuals.get(mode)
        if table is None or not len(table):
            return floats(1.0)
        at = np.stack(np.broadcast_arrays(floats(batch), floats(context), floats(gamma) + 1.0), axis=-1)
        away = (np.log2(np.maximum(1.0, at))[..., None, :] - table[:, :3]) / REACH
        weights = table[:, 4] * np.exp(-0.5 * (away**2).sum(axis=-1))
        mean = (weights * table[:, 3]).sum(axis=-1) / (weights.sum(axis=-1) + PRIOR)
        return floats(np.exp(np.clip(mean, -MOST, MOST)))
