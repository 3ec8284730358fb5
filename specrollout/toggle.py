"""Speculate or decode plainly: decided per engine and step from the predicted speedup, in both directions.

Rules: on at a speedup of `threshold` = 1 + eps, off below `threshold - band`, and either only once what the other mode
would have saved exceeds the cost of switching. Without a model that is known to fit, the answer is plain decoding; a
model that learns online may ask for short probes. Pure logic: it runs no step and reads no clock.

While it speculates no plain step is timed, and what is known of them grows old: then a few plain steps are a check.

Invariants: while the speedup stays inside the band nothing switches; speculation outside a probe needs a known model;
probes that do not settle the matter become rarer, each wait twice as long as the last.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

from april.errors import UsageError
from specrollout.roofline.calibration import Fingerprint, read_calibration
from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.model import LatencyModel, cycle_time, speedup
from specrollout.roofline.online import Estimate, OnlineRoofline
from specrollout.roofline.paper import PaperForm

State = Literal["plain", "speculating", "probing"]


@dataclass(frozen=True, slots=True)
class View:
    """What an engine knows before a step: running requests, their mean context in tokens, draft length, and its L."""

    batch: int
    context: float
    gamma: int
    accepted: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What the next step does, and why."""

    speculate: bool
    state: State
    switched: bool
    reason: str
    speedup: float | None = None
    spread: float | None = None


def inputs_of(view: View, decision: Decision) -> dict[str, float | int | None]:
    """What a decision came from, for the decision log."""
    return {**asdict(view), "speedup": decision.speedup, "spread": decision.spread}


class Predictor(Protocol):
    """A speedup with its uncertainty, and seconds of plain steps and cycles."""

    def estimate(self, view: View) -> Estimate:
        """The predicted speedup."""
        ...

    def seconds(self, view: View) -> tuple[float, float]:
        """T_T and the cycle time."""
        ...

    def known(self, estimate: Estimate, spread_limit: float) -> bool:
        """Whether the prediction may be acted upon."""
        ...

    def refresh(self) -> None:
        """Take the last steps into account at once."""
        ...


class FilePredictor:
    """The model of a calibration file that matches its engine: taken at its word."""

    def __init__(self, model: LatencyModel) -> None:
        self._model = model

    def estimate(self, view: View) -> Estimate:
        """The speedup, without a spread."""
        return Estimate(float(speedup(self._model, view.batch, view.context, view.gamma, view.accepted)), 0.0)

    def seconds(self, view: View) -> tuple[float, float]:
        """T_T and gamma T_D + T_V."""
        plain = float(self._model.t_target(view.batch, view.context))
        return plain, float(cycle_time(self._model, view.batch, view.context, view.gamma))

    def known(self, estimate: Estimate, spread_limit: float) -> bool:
        """Always."""
        return True

    def refresh(self) -> None:
        """A file does not change."""


class OnlinePredictor(FilePredictor):
    """The model that follows the engine's steps: known where its steps have made it certain.

    The speedup is predicted for each view, its spread only after a fit or where the view has moved: the spread takes a
    gradient, about 2 ms, and changes with fits only.
    """

    def __init__(self, online: OnlineRoofline) -> None:
        self._online = online
        self._spread_of: tuple[int, ...] = ()
        self._spread = math.inf

    def estimate(self, view: View) -> Estimate:
        """The speedup and the standard deviation of its logarithm."""
        moved = (
            round(4 * math.log2(view.batch)),
            round(4 * math.log2(max(1.0, view.context))),
            round(4 * view.accepted),
        )
        place = (self._online.fits, view.gamma, *moved)
        if place != self._spread_of:
            estimate = self._online.estimate(view.batch, view.context, view.gamma, view.accepted)
            self._spread_of, self._spread = place, estimate.spread
            return estimate
        predicted = speedup(self._online.model, view.batch, view.context, view.gamma, view.accepted)
        return Estimate(float(predicted), self._spread)

    def seconds(self, view: View) -> tuple[float, float]:
        """T_T and the cycle time, as known now."""
        return FilePredictor(self._online.model).seconds(view)

    def known(self, estimate: Estimate, spread_limit: float) -> bool:
        """Speculation was timed, and its speedup here is certain enough."""
        return self._online.seen_cycles and estimate.spread <= spread_limit

    def refresh(self) -> None:
        """Fit now."""
        self._online.fit()


@dataclass(frozen=True, slots=True)
class ToggleConfig:
    """Thresholds of speedups, costs in seconds, lengths in steps."""

    threshold: float = 1.05
    band: float = 0.03
    switch_cost_s: float = 0.02
    spread_on: float = 0.06
    spread_off: float = 0.12
    probe_cycles: int = 4
    probe_wait_steps: int = 64
    check_steps: int = 4
    probe_deviations: float = 2.0

    def __post_init__(self) -> None:
        if not (self.threshold > 0 and 0 <= self.band < self.threshold and self.switch_cost_s >= 0):
            raise ValueError(f"{self}: threshold > band >= 0 and a cost >= 0 are expected")
        if not (0 < self.spread_on <= self.spread_off and self.probe_cycles >= 1 and self.probe_wait_steps >= 1):
            raise ValueError(
                f"{self}: 0 < spread_on <= spread_off, probe_cycles >= 1 and probe_wait_steps >= 1 are expected"
            )


class Toggle:
    """The decision of one engine. `refusal` says why there is no model, where there is none."""

    def __init__(self, config: ToggleConfig, predictor: Predictor | None, refusal: str = "no calibration") -> None:
        self._config = config
        self._predictor = predictor
        self._refusal = refusal
        self._state: State = "plain"
        self._saved_s = 0.0  # what the other mode would have saved since it began to look better
        self._probe_left = self._check_left = 0
        self._wait_steps = config.probe_wait_steps
        self._next_wait_steps = config.probe_wait_steps

    @property
    def state(self) -> State:
        """What the engine does now."""
        return self._state

    @property
    def refusal(self) -> str | None:
        """Why there is no model; None where there is one."""
        return self._refusal if self._predictor is None else None

    def decide(self, view: View) -> Decision:
        """Decide the next step."""
        if self._predictor is None or view.batch == 0:
            return self._to("plain", self._refusal if self._predictor is None else "no request is running")
        checked = self._check_left == 1
        if checked:
            self._check_left = 0
            self._predictor.refresh()
        stays = checked or self._state == "speculating"
        limit = self._config.spread_off if stays else self._config.spread_on
        estimate = self._predictor.estimate(view)
        if self._check_left == 0 and self._predictor.known(estimate, limit):
            self._probe_left, self._next_wait_steps = 0, self._config.probe_wait_steps
            return self._by_speedup(view, estimate)
        return self._unknown(estimate)

    def _by_speedup(self, view: View, estimate: Estimate) -> Decision:
        assert self._predictor is not None
        on = self._state != "plain"
        bound = self._config.threshold - self._config.band if on else self._config.threshold
        if (estimate.speedup >= bound) == on:
            self._saved_s = 0.0
            kept = "speculating" if on else "plain"
            relation = ">=" if on else "<"
            return self._to("speculating" if on else "plain", f"speedup {relation} {bound:.3f}: stays {kept}", estimate)
        plain_s, cycle_s = self._predictor.seconds(view)
        # Of a plain step, speculation would save 1 - 1 / speedup; of a cycle, plain steps would save 1 - speedup.
        self._saved_s += max(
            0.0, cycle_s * (1.0 - estimate.speedup) if on else plain_s * (1.0 - 1.0 / estimate.speedup)
        )
        worth = f"{self._saved_s:.4f} s that the other mode would have saved"
        if self._saved_s < self._config.switch_cost_s:
            return self._to(
                self._state, f"{worth} do not yet pay a switch of {self._config.switch_cost_s:.4f} s", estimate
            )
        self._saved_s = 0.0
        relation = "<" if on else ">="
        return self._to(
            "plain" if on else "speculating", f"speedup {relation} {bound:.3f}, and {worth} pay the switch", estimate
        )

    def _unknown(self, estimate: Estimate) -> Decision:
        self._saved_s = 0.0
        if self._state == "speculating":
            self._check_left = 1 + self._config.check_steps
        if self._check_left > 1:
            self._check_left -= 1
            return self._to(
                "plain", f"check: {self._check_left - 1} plain steps left, then back to the model", estimate
            )
        if self._probe_left > 0:
            self._probe_left -= 1
            return self._to("probing", f"probe: {self._probe_left} cycles left", estimate)
        if self._wait_steps > 0:
            self._wait_steps -= 1
            return self._to(
                "plain", f"the speedup is not known yet; a probe may come in {self._wait_steps} steps", estimate
            )
        if estimate.plausible(self._config.probe_deviations) < self._config.threshold:
            return self._to("plain", "the speedup is not known, and too low to be worth a probe", estimate)
        self._wait_steps = self._next_wait_steps
        self._next_wait_steps *= 2
        self._probe_left = self._config.probe_cycles - 1
        return self._to("probing", f"probe of {self._config.probe_cycles} cycles: speculation may pay here", estimate)

    def _to(self, state: State, reason: str, estimate: Estimate | None = None) -> Decision:
        switched, self._state = (state == "plain") != (self._state == "plain"), state
        values = (None, None) if estimate is None else (estimate.speedup, estimate.spread)
        return Decision(state != "plain", state, switched, reason, *values)


def toggle_for(
    config: ToggleConfig, path: Path | None, running: Fingerprint, constants: ModelConstants | None
) -> tuple[Toggle, OnlineRoofline | None]:
    """The toggle of an engine, and the model to give its measured steps to, where it follows them.

    With a calibration that matches, the toggle starts from it; with one that does not match or cannot be read, the
    engine decodes plainly and every decision says why; without a file it learns, given the model's constants.
    """
    if path is None:
        if constants is None or not (constants.layers and constants.heads):
            return Toggle(config, None), None
        online = OnlineRoofline.unknown(constants)
        return Toggle(config, OnlinePredictor(online)), online
    try:
        calibration = read_calibration(path)
        refusal = calibration.mismatch(running)
    except UsageError as error:
        refusal = str(error)
    if refusal is not None:
        return Toggle(config, None, refusal), None
    covariance = calibration.covariance()
    if isinstance(calibration.form, PaperForm) or covariance is None:
        return Toggle(config, FilePredictor(calibration.model)), None
    online = OnlineRoofline(calibration.form, covariance, calibrated=True)
    return Toggle(config, OnlinePredictor(online)), online


class PaperToggle:
    """The published toggle: off until more than `guard` requests ran once, then on for good once the speedup is there.

    One rollout at a time: `start_rollout` takes 1 + accepted / drafts of the last one, which counts if the draft
    length is the same; else L is gamma. Without a model it stays off, where the published one would be always on.
    """

    def __init__(self, model: LatencyModel | None, eps: float = 0.05, guard: int = 32) -> None:
        self._model = model
        self._eps = eps
        self._guard = guard
        self.start_rollout(None, 0)

    def start_rollout(self, accepted: float | None, gamma: int) -> None:
        """Off again, with what the last rollout has measured at its draft length."""
        self._accepted, self._accepted_gamma = accepted, gamma
        self._full = self._on = False

    def decide(self, view: View) -> Decision:
        """Decide the next step; `view.accepted` is not used."""
        if self._model is None:
            return Decision(False, "plain", False, "no calibration")
        if self._on:
            return Decision(True, "speculating", False, "on for the rest of the rollout")
        if not self._full:
            self._full = view.batch > self._guard
            return Decision(False, "plain", False, f"more than {self._guard} requests have not been running before")
        if view.batch == 0:
            return Decision(False, "plain", False, "no request is running")
        gained = (
            self._accepted if self._accepted is not None and self._accepted_gamma == view.gamma else float(view.gamma)
        )
        predicted = float(speedup(self._model, view.batch, int(view.context), view.gamma, gained))
        self._on = predicted >= 1.0 + self._eps
        relation = ">=" if self._on else "<"
        reason = f"speedup {relation} {1.0 + self._eps:.3f} at L {gained:.2f}"
        return Decision(self._on, "speculating" if self._on else "plain", self._on, reason, predicted)
