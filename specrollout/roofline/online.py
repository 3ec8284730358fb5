"""A latency model that follows measured steps: an extended Kalman filter on the logarithms of our form's parameters.

Every step that is timed is one observation, log t = log model(B, S, gamma) + noise. A model without a file starts from
the expectations of `parameters.py`, with a spread so wide that the first steps decide; one from a file starts from its
fit and covariance. An innovation far outside what is expected is bounded in its effect, so that one odd step moves
little, and a lasting change is followed.

Invariants: parameters stay in their ranges, the covariance stays symmetric and positive, and an observation never
makes a prediction undefined. Needs numpy only: it runs inside an engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.model import Floats
from specrollout.roofline.parameters import bounds, parameters, spreads, start_vector
from specrollout.roofline.physical import PhysicalForm
from specrollout.roofline.sweep import DRAFTER, MODES, TARGET, VERIFY
from specrollout.roofline.tiles import EngineTraits

STEP_NOISE = 0.05  # standard deviation of log time of one step that the form does not explain
DRIFT = 0.002  # standard deviation by which each parameter may move between two observations
OUTLIER = 3.0  # innovations beyond this many standard deviations are bounded
ITERATIONS = 4  # relinearizations: the first observations move far
SETTLED = 0.02  # relinearizing stops when no parameter moves by more (log)
DIFFERENCE = 1e-4  # step of the numeric gradient, in log parameters
UNKNOWN_SPREAD = 2.0  # spread of scale parameters before the first observation: a factor of 7 either way
KNOWN_CYCLES = 3  # drafter and verify steps without which no spread is believed: before them, expectations speak
PLAIN = EngineTraits(graph_padding="sizes", shared_prefix=False)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted speedup and the standard deviation of its logarithm."""

    speedup: float
    spread: float

    def plausible(self, deviations: float) -> float:
        """The speedup that many standard deviations above the prediction."""
        return self.speedup * math.exp(min(50.0, deviations * self.spread))


class OnlineRoofline:
    """Our form, updated by each measured step. One per engine."""

    def __init__(self, form: PhysicalForm, covariance: Floats, calibrated: bool = False) -> None:
        self._form = form
        self._calibrated = calibrated
        self._covariance = np.array(covariance, dtype=float)
        self._low, self._high = bounds(form.table)
        self.observations = dict.fromkeys(MODES, 0)

    @classmethod
    def unknown(cls, constants: ModelConstants, traits: EngineTraits = PLAIN) -> OnlineRoofline:
        """A model of a device that nothing is known of."""
        table = parameters(constants.tp)
        spread = np.minimum(spreads(table), UNKNOWN_SPREAD)
        return cls(PhysicalForm(constants, traits, tuple(start_vector(table))), np.diag(spread**2))

    @property
    def form(self) -> PhysicalForm:
        """The model as it is now."""
        return self._form

    def observe(self, mode: str, batch: float, context: float, gamma: int, seconds: float) -> None:
        """Take one timed step into account; a time that is no positive number is ignored."""
        if not (math.isfinite(seconds) and seconds > 0 and batch >= 1):
            return
        point = (mode, batch, context, gamma)
        prior = np.array(self._form.log_values)
        covariance = self._covariance + DRIFT**2 * np.eye(prior.size)
        values = prior
        for _ in range(ITERATIONS):
            gradient = self._gradient(values, point)
            variance = float(gradient @ covariance @ gradient) + STEP_NOISE**2
            innovation = math.log(seconds) - self._log_time(values, point) - float(gradient @ (prior - values))
            limit = OUTLIER * math.sqrt(variance)
            gain = covariance @ gradient / variance
            moved = np.clip(prior + gain * float(np.clip(innovation, -limit, limit)), self._low, self._high)
            settled = bool(np.max(np.abs(moved - values)) < SETTLED)
            values = moved
            if settled:
                break
        inside = abs(innovation) <= limit
        self._form = PhysicalForm(self._form.constants, self._form.traits, tuple(map(float, values)))
        # A bounded observation tells little of where the parameters are: it must not make them look certain.
        reduced = covariance - np.outer(gain, gain) * variance if inside else covariance
        self._covariance = (reduced + reduced.T) / 2
        self.observations[mode] += 1

    @property
    def seen_cycles(self) -> bool:
        """Whether a prediction of speculation rests on timed steps of it: of this run, or of the calibration."""
        return self._calibrated or min(self.observations[DRAFTER], self.observations[VERIFY]) >= KNOWN_CYCLES

    def time(self, mode: str, batch: float, context: float, gamma: int) -> float:
        """Predicted seconds of one pass."""
        return math.exp(self._log_time(np.array(self._form.log_values), (mode, batch, context, gamma)))

    def estimate(self, batch: float, context: float, gamma: int, accepted: float) -> Estimate:
        """The speedup of speculation with L = `accepted`, and how well it is known."""
        values = np.array(self._form.log_values)

        def log_speedup(at: Floats) -> float:
            form = PhysicalForm(self._form.constants, self._form.traits, tuple(at))
            cycle = gamma * form.t_drafter(batch, context, gamma) + form.t_verify(batch, context, gamma)
            return math.log(accepted * float(form.t_target(batch, context)) / float(cycle))

        center = log_speedup(values)
        gradient = np.array([(log_speedup(values + d) - center) / DIFFERENCE for d in DIFFERENCE * np.eye(values.size)])
        variance = float(gradient @ self._covariance @ gradient)
        return Estimate(math.exp(center), math.sqrt(max(0.0, variance)))

    def _log_time(self, values: Floats, point: tuple[str, float, float, int]) -> float:
        mode, batch, context, gamma = point
        form = PhysicalForm(self._form.constants, self._form.traits, tuple(values))
        if mode == TARGET:
            return math.log(float(form.t_target(batch, context)))
        predict = form.t_drafter if mode == DRAFTER else form.t_verify
        return math.log(float(predict(batch, context, gamma)))

    def _gradient(self, values: Floats, point: tuple[str, float, float, int]) -> Floats:
        center = self._log_time(values, point)
        steps = DIFFERENCE * np.eye(values.size)
        return np.array([(self._log_time(values + step, point) - center) / DIFFERENCE for step in steps])
