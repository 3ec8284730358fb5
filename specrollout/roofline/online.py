"""A latency model that follows measured steps: our form, fitted again and again to what was seen, in numpy alone.

Steps are kept by cell, a mode with a draft length and a neighbourhood of B and S, the last few of each; a cell counts
with their median, so that an odd step changes nothing and a lasting change is there after three. The parameters are
those of highest posterior density: the cells, with tails that forgive, against a prior. Without a calibration the
prior is the expectations of `parameters.py`, so wide that the first steps decide, and wider still in the one direction
in which log times are linear: a device that is slower in everything. With one it is the calibration and its
covariance.

No form is right everywhere: what the fit leaves over near measured cells moves predictions there (``local.py``).

Invariants: parameters stay in their ranges, the covariance stays symmetric and positive, and no observation makes a
prediction undefined.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.local import Corrected, Residual
from specrollout.roofline.model import FloatLike, Floats, LatencyModel, floats, speedup
from specrollout.roofline.parameters import bounds, parameters, spreads, start_vector
from specrollout.roofline.physical import PhysicalForm
from specrollout.roofline.sweep import DRAFTER, MODES, TARGET, VERIFY
from specrollout.roofline.tiles import EngineTraits

STEP_NOISE = 0.05  # standard deviation of the log time of a cell that the form does not explain
AGE_VARIANCE = 4e-6  # what its square grows by with each observation since the cell's last: a random walk
CELL_STEPS = 5  # steps that a cell remembers
MEDIAN_STEPS = 3  # steps whose median one odd step does not move
CELLS_PER_DOUBLING = 2  # cells for each doubling of B, and of S
REFIT_EVERY = 64  # observations between two fits, at most: a fit takes tens of ms; the first come sooner
FREE_FITS = 64  # fits before they are counted against the time of the steps
FIT_S = 0.02  # what a fit takes, at most, on a slow core
FIT_SHARE = 0.02  # of the time of the steps that fits may take
REFIT_MOST = 512  # the same where fits have come to change nothing
UNMOVED = 0.02  # no log parameter moved by more: the fit changed nothing
NEW_CELL = 8  # the first step of a cell counts as so many
ITERATIONS = 12  # of a fit at most; one that starts near its end needs two or three, the next one goes on
SETTLED = 0.002  # a fit ends when no parameter moves by more (log)
DIFFERENCE = 1e-4  # step of the numeric derivatives, in log parameters
UNKNOWN_SPREAD = 2.0  # spread of one throughput against the others before the first observation: 7 times either way
SPEED_SPREAD = 5.0  # spread of the speed of the whole device: 150 times either way
CALIBRATED_SPREAD = 0.03  # how far an engine may be from its calibration, for each parameter
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


@dataclass(slots=True)
class Cell:
    """The last steps of a mode at about one point: (B, S, log seconds), and when the last came."""

    mode: str
    gamma: int
    steps: deque[tuple[float, float, float]]
    last: int


@dataclass(frozen=True, slots=True)
class Points:
    """What a fit looks at, one step for each cell of a mode: arrays of equal length; ``noise`` of the log time."""

    batch: Floats
    context: Floats
    gamma: Floats
    log_s: Floats
    noise: Floats


class OnlineRoofline:
    """Our form, updated by the measured steps of one engine."""

    def __init__(self, form: PhysicalForm, covariance: Floats, calibrated: bool = False) -> None:
        extra = CALIBRATED_SPREAD**2 if calibrated else 0.0
        self._form = form
        self._calibrated = calibrated
        self._prior = np.array(form.log_values)
        self._covariance = np.array(covariance, dtype=float) + extra * np.eye(self._prior.size)
        self._precision = np.linalg.inv(self._covariance)
        self._low, self._high = bounds(form.table)
        self._cells: dict[tuple[str, int, int, int], Cell] = {}
        self._since_fit = 0
        self._refit_every = REFIT_EVERY
        self._local = Corrected(form, {})
        self.fits = 0
        self._seconds = 0.0  # of the steps observed
        self.observations = dict.fromkeys(MODES, 0)

    @classmethod
    def unknown(cls, constants: ModelConstants, traits: EngineTraits = PLAIN) -> OnlineRoofline:
        """A model of a device that nothing is known of."""
        table = parameters(constants.tp)
        spread = np.minimum(spreads(table), UNKNOWN_SPREAD)
        speed = np.array([-1.0 if p.unit.endswith("/s") else float(p.unit == "s") for p in table])
        covariance = np.diag(spread**2) + SPEED_SPREAD**2 * np.outer(speed, speed)
        return cls(PhysicalForm(constants, traits, tuple(start_vector(table))), covariance)

    @property
    def form(self) -> PhysicalForm:
        """The model as it is now."""
        return self._form

    @property
    def model(self) -> Corrected:
        """What predicts: the form, moved near measured steps by what the last fit has left over there."""
        return self._local

    @property
    def seen_cycles(self) -> bool:
        """Whether a prediction of speculation rests on timed steps of it: of this run, or of the calibration."""
        return self._calibrated or min(self.observations[DRAFTER], self.observations[VERIFY]) >= KNOWN_CYCLES

    def observe(self, mode: str, batch: float, context: float, gamma: int, seconds: float) -> None:
        """Take one timed step into account; what is no positive time of a running step is ignored."""
        if not (math.isfinite(seconds) and seconds > 0 and batch >= 1):
            return
        gamma = 0 if mode == TARGET else gamma
        doublings = (math.log2(batch), math.log2(max(1.0, context)))
        place = (mode, gamma, round(CELLS_PER_DOUBLING * doublings[0]), round(CELLS_PER_DOUBLING * doublings[1]))
        self.observations[mode] += 1
        total = sum(self.observations.values())
        cell = self._cells.get(place)
        self._since_fit += 1 if cell else NEW_CELL
        if cell is None:
            self._refit_every = REFIT_EVERY
            cell = self._cells[place] = Cell(mode, gamma, deque(maxlen=CELL_STEPS), total)
        cell.steps.append((batch, context, math.log(seconds)))
        cell.last = total
        self._seconds += seconds
        if self._since_fit >= min(self._refit_every, 1 + total // 8) and self._affordable:
            self.fit()

    @property
    def _affordable(self) -> bool:
        """Whether fits would keep to their share of the time; counted, not timed, so that runs can be repeated."""
        return (self.fits - FREE_FITS) * FIT_S <= FIT_SHARE * self._seconds

    def fit(self) -> None:
        """Fit now; it happens by itself as observations come, the more seldom the less it changes."""
        before = np.array(self._form.log_values)
        now = sum(self.observations.values())
        self._fit(now)
        self._local = Corrected.of(self._form, {mode: self._left_over(mode, now) for mode in MODES})
        self.fits += 1
        self._since_fit = 0
        unmoved = float(np.max(np.abs(np.array(self._form.log_values) - before))) <= UNMOVED
        self._refit_every = min(REFIT_MOST, 2 * self._refit_every) if unmoved else REFIT_EVERY

    def time(self, mode: str, batch: float, context: float, gamma: int) -> float:
        """Predicted seconds of one pass."""
        return float(np.exp(_log_times(self._local, mode, batch, context, float(gamma))))

    def estimate(self, batch: float, context: float, gamma: int, accepted: float) -> Estimate:
        """The speedup of speculation with L = `accepted`, and how well it is known."""

        def log_speedup(form: PhysicalForm) -> Floats:
            cycle = gamma * form.t_drafter(batch, context, gamma) + form.t_verify(batch, context, gamma)
            return floats(np.log(np.atleast_1d(accepted * form.t_target(batch, context) / cycle)))

        center = log_speedup(self._form)
        gradient = np.array([float(log_speedup(f)[0] - center[0]) / DIFFERENCE for f in self._neighbours(self._form)])
        variance = float(gradient @ self._covariance @ gradient)
        return Estimate(float(speedup(self._local, batch, context, gamma, accepted)), math.sqrt(max(0.0, variance)))

    def _left_over(self, mode: str, now: int) -> list[Residual]:
        """Of each cell with enough steps for a median: where it is, log measured - log predicted, and its weight."""
        found = []
        for cell in self._cells.values():
            if cell.mode == mode and len(cell.steps) >= MEDIAN_STEPS:
                batch, context, measured = (float(np.median(part)) for part in np.array(cell.steps).T)
                predicted = float(_log_times(self._form, mode, batch, context, float(cell.gamma)))
                weight = STEP_NOISE**2 / _variance(now - cell.last)
                found.append((batch, context, float(cell.gamma), measured - predicted, weight))
        return found

    def _fit(self, now: int) -> None:
        """Levenberg and Marquardt from where the parameters are; cells far off count less (Cauchy)."""
        values, damping = np.array(self._form.log_values), 1e-3
        points = self._points(now)
        residuals = self._residuals(self._form, points)
        jacobian = self._jacobian(self._form, points, residuals)
        for _ in range(ITERATIONS):
            weights = 1.0 / (1.0 + residuals**2 / 9.0)
            slope = jacobian.T @ (weights * residuals) + self._precision @ (values - self._prior)
            curvature = jacobian.T @ (weights[:, None] * jacobian) + self._precision
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -slope)
            tried = np.clip(values + np.clip(step, -2.0, 2.0), self._low, self._high)
            form = PhysicalForm(self._form.constants, self._form.traits, tuple(map(float, tried)))
            found = self._residuals(form, points)
            if self._cost(found, tried) < self._cost(residuals, values):
                moved = float(np.max(np.abs(tried - values)))
                values, self._form, damping = tried, form, max(1e-6, damping / 5)
                residuals, jacobian = found, self._jacobian(form, points, found)
            else:
                moved, damping = math.inf if damping < 1e6 else 0.0, damping * 5
            if moved < SETTLED:
                break
        weights = 1.0 / (1.0 + residuals**2 / 9.0)
        covariance = np.linalg.inv(jacobian.T @ (weights[:, None] * jacobian) + self._precision)
        self._covariance = (covariance + covariance.T) / 2

    def _cost(self, residuals: Floats, values: Floats) -> float:
        away = values - self._prior
        return float(9.0 * np.log1p(residuals**2 / 9.0).sum() + away @ self._precision @ away)

    def _points(self, now: int) -> dict[str, Points]:
        """By mode, the step of each cell that the form errs on as it does in the median: an odd step is never it."""
        found = {}
        for mode in MODES:
            cells = [cell for cell in self._cells.values() if cell.mode == mode]
            if not cells:
                continue
            steps = np.array([step for cell in cells for step in cell.steps]).T
            gammas = np.repeat([float(cell.gamma) for cell in cells], [len(cell.steps) for cell in cells])
            errors = _log_times(self._form, mode, steps[0], steps[1], gammas) - steps[2]
            first, chosen = 0, []
            for cell in cells:
                count = len(cell.steps)
                order = sorted(range(first, first + count), key=errors.__getitem__)
                chosen.append(order[count // 2])
                first += count
            noise = np.sqrt([_variance(now - cell.last) for cell in cells])
            found[mode] = Points(steps[0][chosen], steps[1][chosen], gammas[chosen], steps[2][chosen], noise)
        return found

    @staticmethod
    def _residuals(form: PhysicalForm, points: dict[str, Points]) -> Floats:
        """Of the points, in standard deviations."""
        return np.concatenate(
            [
                (_log_times(form, mode, at.batch, at.context, at.gamma) - at.log_s) / at.noise
                for mode, at in points.items()
            ]
        )

    def _jacobian(self, form: PhysicalForm, points: dict[str, Points], residuals: Floats) -> Floats:
        """Derivatives of the residuals by the log parameters: [points, parameters]."""
        columns = [(self._residuals(near, points) - residuals) / DIFFERENCE for near in self._neighbours(form)]
        return np.stack(columns, axis=1)

    def _neighbours(self, form: PhysicalForm) -> list[PhysicalForm]:
        values = np.array(form.log_values)
        moved = values + DIFFERENCE * np.eye(values.size)
        return [PhysicalForm(form.constants, form.traits, tuple(map(float, at))) for at in moved]


def _variance(age: int) -> float:
    """Of the log time of a cell whose last step was so many observations ago."""
    return STEP_NOISE**2 + AGE_VARIANCE * age


def _log_times(form: LatencyModel, mode: str, batch: FloatLike, context: FloatLike, gamma: FloatLike) -> Floats:
    if mode == TARGET:
        return np.log(form.t_target(batch, context))
    predict = form.t_drafter if mode == DRAFTER else form.t_verify
    return np.log(predict(batch, context, gamma))
