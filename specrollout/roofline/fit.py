"""Parameters of our form from a sweep: robust least squares of log times in log parameters, with priors.

A residual is log(predicted / measured) in units of NOISE; T_D, T_V, the cycle and the speedup count once each, T_T
more. Starved rows take no part. What the engine does (`EngineTraits`) is found by refitting with each alternative.
scipy is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from april.errors import UsageError
from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.model import Floats, LatencyModel, cycle_time
from specrollout.roofline.parameters import Parameter, bounds, parameters, spreads, start_vector
from specrollout.roofline.physical import PhysicalForm
from specrollout.roofline.starved import without_starved
from specrollout.roofline.sweep import DRAFTER, TARGET, VERIFY, Sweep
from specrollout.roofline.tiles import EngineTraits

NOISE = 0.03  # expected relative error of a time: what such a form leaves unexplained
TARGET_WEIGHT = 1.5  # T_T is in every decision
GEMM_SPREAD = 0.1  # how far a measured GEMM throughput may be from that of a step (log)
TRAIT_MARGIN = 3.0  # a cost, a log likelihood, that differs by less decides nothing


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted form; `covariance` is that of the logarithms of its parameters, `cost` half the robust squares."""

    form: PhysicalForm
    covariance: Floats
    cost: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A sweep as columns: rows of each mode (B, S, gamma, seconds), and cycles (B, S, gamma, T_T, T_D, T_V)."""

    target: Floats
    drafter: Floats
    verify: Floats
    cycles: Floats

    @classmethod
    def of(cls, sweep: Sweep) -> Measured:
        """Arrange a sweep."""
        modes = [
            [(row.batch, row.context, row.gamma, row.seconds) for row in sweep.rows if row.mode == mode]
            for mode in (TARGET, DRAFTER, VERIFY)
        ]
        cycles = [
            np.stack([c.batch, c.context, np.full_like(c.batch, g), c.t_target, c.t_drafter, c.t_verify])
            for g in sweep.gammas
            for c in [sweep.cycles(g)]
        ]
        target, drafter, verify = (np.array(rows, dtype=float).T for rows in modes)
        return cls(target, drafter, verify, np.concatenate(cycles, axis=1))

    def log_errors(self, model: LatencyModel) -> dict[str, Floats]:
        """log(predicted / measured) of each time, of the cycles and of the speedups."""
        batch, context, gamma, t_target, t_drafter, t_verify = self.cycles
        cycle = np.log(cycle_time(model, batch, context, gamma) / (gamma * t_drafter + t_verify))
        return {
            "target": np.log(model.t_target(*self.target[:2]) / self.target[3]),
            "drafter": np.log(model.t_drafter(*self.drafter[:3]) / self.drafter[3]),
            "verify": np.log(model.t_verify(*self.verify[:3]) / self.verify[3]),
            "cycle": cycle,
            "speedup": np.log(model.t_target(batch, context) / t_target) - cycle,
        }


def fit(sweep: Sweep, constants: ModelConstants, gemm_flop_per_s: float | None = None) -> Fitted:
    """Fit parameters and traits to a sweep."""
    _check_shape(constants)
    measured = Measured.of(without_starved(sweep))
    table = _expectations(constants, measured, gemm_flop_per_s)

    def attempt(traits: EngineTraits, start: Floats | None = None) -> Fitted:
        return _least_squares(measured, constants, traits, table, start)

    best = attempt(EngineTraits())
    for alternatives, margin in _alternatives():
        tried = [attempt(change(best.form.traits), np.array(best.form.log_values)) for change in alternatives]
        chosen = min(tried, key=lambda fitted: fitted.cost)
        if chosen.cost < best.cost + margin:
            best = chosen
    return best


def _check_shape(constants: ModelConstants) -> None:
    absent = {"L": constants.layers, "n_heads": constants.heads}
    if constants.tp > 1:
        absent["D"] = constants.width
    missing = [name for name, value in absent.items() if not value]
    if missing:
        raise UsageError(
            f"the constants hold no {', '.join(missing)}, which --form best needs; --form paper does without"
        )


def _alternatives() -> list[tuple[list[Callable[[EngineTraits], EngineTraits]], float]]:
    """Changes of one trait, and by how much more their cost may be.

    Where the rows do not decide, padding and tiles are taken as most engines have them, and no prefix as shared:
    requests of a rollout share little.
    """
    return [
        ([lambda t: replace(t, shared_prefix=False)], TRAIT_MARGIN),
        ([lambda t: replace(t, graph_padding="sizes"), lambda t: replace(t, graph_padding="none")], -TRAIT_MARGIN),
        ([lambda t: replace(t, quantized_tiles=False)], -TRAIT_MARGIN),
    ]


def _expectations(constants: ModelConstants, measured: Measured, gemm: float | None) -> tuple[Parameter, ...]:
    """The table of parameters, its scale-free starts moved to what the fastest and the largest passes reach."""
    batch, _, gamma, seconds = measured.verify
    reached = float(np.max(batch * (gamma + 1) / seconds)) * constants.dense_flop
    starts = {
        "bandwidth_bytes_per_s": constants.read_bytes / float(measured.target[3].min()),
        "dense_flop_per_s": reached if gemm is None else gemm,
        "quantized_flop_per_s": reached / 2,
    }
    table = []
    for p in parameters(constants.tp):
        spread = GEMM_SPREAD if p.name == "dense_flop_per_s" and gemm is not None else p.spread
        table.append(replace(p, start=float(np.clip(starts.get(p.name, p.start), p.low, p.high)), spread=spread))
    return tuple(table)


def _least_squares(
    measured: Measured,
    constants: ModelConstants,
    traits: EngineTraits,
    table: tuple[Parameter, ...],
    start: Floats | None = None,
) -> Fitted:
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    expected, spread = start_vector(table), spreads(table)
    low, high = bounds(table)

    def residuals(values: Floats) -> Floats:
        errors = measured.log_errors(PhysicalForm(constants, traits, tuple(values)))
        weighted = [(TARGET_WEIGHT if what == "target" else 1.0) * error / NOISE for what, error in errors.items()]
        return np.concatenate([*weighted, (values - expected) / spread])

    first = np.clip(expected if start is None else start, low + 1e-6, high - 1e-6)
    result = least_squares(residuals, first, bounds=(low, high), loss="cauchy", x_scale=0.1, max_nfev=400)
    return Fitted(
        PhysicalForm(constants, traits, tuple(map(float, result.x))), _covariance(result.jac), float(result.cost)
    )


def _covariance(jacobian: Floats) -> Floats:
    """Inverse of the Gauss-Newton Hessian, which the priors keep from being singular."""
    return np.linalg.pinv(jacobian.T @ jacobian)
