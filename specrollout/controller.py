"""What the next step of an engine does: plain decoding or a cycle, of which draft length, with which drafter.

It joins the toggle, the draft-length rules, the acceptance curve and the model that follows the engine's own steps, and
writes down what it decided. Pure logic: it runs no step and reads no clock but the one that it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from april.errors import UsageError
from specrollout.gamma import AcceptanceCurve, Bandit, Ladder, Optimal
from specrollout.roofline.calibration import Fingerprint, read_calibration
from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.decisions import DecisionLog
from specrollout.roofline.online import OnlineRoofline
from specrollout.roofline.sweep import DRAFTER, TARGET, VERIFY
from specrollout.settings import Settings
from specrollout.toggle import Decision, PaperToggle, ToggleConfig, View, inputs_of, toggle_for

PLAIN, SPECULATING = "plain", "speculating"
FORCED = ("auto", "on", "off")
FIRST_GAMMA = 3
"""Where a rule without a model begins: short, so that a probe costs little."""
STRETCH = 16
"""Cycles that the bandit stays with a draft length."""


class Chooser(Protocol):
    """A toggle."""

    def decide(self, view: View) -> Decision:
        """The next step."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """The next step: gamma is 0 for plain decoding."""

    gamma: int
    reason: str

    @property
    def speculate(self) -> bool:
        """Whether it is a cycle."""
        return self.gamma > 0


class Controller:
    """The decisions of one engine. ``running`` and ``constants`` say what runs, for the model of its times."""

    def __init__(
        self,
        settings: Settings,
        running: Fingerprint,
        constants: ModelConstants | None,
        log: DecisionLog | None = None,
        engine: str = "0",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.curve = AcceptanceCurve(settings.longest)
        self._forced = "auto"
        self._gamma: int | None = settings.gamma if isinstance(settings.gamma, int) else None
        self._toggle, self._online, self._why_off = _toggle(settings, running, constants)
        self._ladder = Ladder(rungs=tuple(g for g in (5, 7, 9, 11) if g <= settings.longest) or (settings.longest,))
        self._bandit = Bandit(arms=tuple(g for g in (1, 3, 5, 7, 9, 11, 13, 15) if g <= settings.longest))
        model = self._online.model if self._online else _model_of(settings)
        self._optimal = (
            Optimal(model, longest=settings.longest, gamma=min(FIRST_GAMMA, settings.longest)) if model else None
        )
        self._stretch = [0, 0.0, 0.0]  # cycles, tokens a request, seconds
        self._arm = self._bandit.choose()
        self._rollout = [0, 0]  # accepted, drafted
        self._measured: tuple[float | None, int] = (None, 0)  # L and draft length of the last rollout
        self._last = PLAIN
        self._log, self._engine, self._clock, self._steps = log, engine, clock, 0

    def next(self, batch: int, context: float) -> Step:
        """Decide for ``batch`` running requests of ``context`` tokens each in the mean."""
        self._steps += 1
        if self._mode == "off":  # nothing is asked, and a step costs nothing more
            view = View(batch, context, 0, 1.0)
        else:
            gamma = self._draft_length(batch, context)
            view = View(batch, context, gamma, self.curve.tokens_per_cycle(gamma))
        decision = self._decide(view)
        choice = SPECULATING if decision.speculate else PLAIN
        self._last = choice
        if self._log is not None:
            inputs = inputs_of(view, decision)
            self._log.record(self._clock(), self._engine, self._steps, "toggle", choice, decision.reason, inputs)
            if decision.speculate:
                shares = [round(float(share), 4) for share in self.curve.shares()[: self.settings.longest]]
                self._log.record(
                    self._clock(),
                    self._engine,
                    self._steps,
                    "gamma",
                    view.gamma,
                    self.rule,
                    {**inputs, "shares": shares},
                )
        return Step(view.gamma if decision.speculate else 0, decision.reason)

    @property
    def rule(self) -> str:
        """How the draft length is chosen."""
        return "fixed" if self._gamma is not None else str(self.settings.gamma)

    @property
    def state(self) -> dict[str, Any]:
        """For the report."""
        return {"forced": self._forced, "rule": self.rule, "last": self._last, "refusal": self._why_off}

    def force(self, mode: str | None = None, gamma: int | str | None = None) -> None:
        """Take over: ``mode`` auto, on or off; ``gamma`` a number, or ``auto`` for the rule of the settings.

        Raises UsageError for anything else; nothing has changed then.
        """
        if mode is not None and mode not in FORCED:
            raise UsageError(f"mode is {mode!r}: it must be one of {', '.join(FORCED)}")
        fixed = self._gamma
        if gamma == "auto":
            fixed = self.settings.gamma if isinstance(self.settings.gamma, int) else None
        elif gamma is not None:
            if not isinstance(gamma, int) or isinstance(gamma, bool) or not 1 <= gamma <= self.settings.longest:
                raise UsageError(f"gamma is {gamma!r}: it must be auto, or from 1 to {self.settings.longest}")
            fixed = gamma
        self._gamma = fixed
        self._forced = mode or self._forced

    def timed(self, mode: str, batch: int, context: float, gamma: int, seconds: float) -> None:
        """A step's measured seconds: of a plain step, of one drafted token, or of a verify pass."""
        if self._online is not None:
            self._online.observe(mode, batch, context, gamma, seconds)
            if self._optimal is not None:
                self._optimal.model = self._online.model

    def cycle(
        self, batch: int, context: float, accepted: Sequence[int], gamma: int, draft_s: float, verify_s: float
    ) -> None:
        """A cycle's result: accepted drafts of each request, and its seconds."""
        for count in accepted:
            self.curve.observe(gamma, count)
        self.timed(DRAFTER, batch, context, gamma, draft_s / gamma)
        self.timed(VERIFY, batch, context, gamma, verify_s)
        self._rollout[0] += sum(accepted)
        self._rollout[1] += gamma * len(accepted)
        if self.settings.gamma == "bandit" and self._gamma is None and gamma == self._arm:
            self._learn_arm(1 + sum(accepted) / len(accepted), draft_s + verify_s)

    def plain(self, batch: int, context: float, seconds: float) -> None:
        """A plain step's seconds; where speculation is off, nothing asks what they teach, and a fit takes time."""
        if self._mode != "off":
            self.timed(TARGET, batch, context, 0, seconds)

    def weights_changed(self) -> None:
        """A rollout has ended: the ladder moves, and the published toggle starts anew."""
        accepted, drafted = self._rollout
        if drafted:  # an update comes in several parts
            self._measured = (1 + self._ladder.gamma * accepted / drafted, self._ladder.gamma)
            self._ladder.after_rollout(accepted, drafted)
        if isinstance(self._toggle, PaperToggle):
            self._toggle.start_rollout(*self._measured)
        self._rollout = [0, 0]

    @property
    def _mode(self) -> str:
        return self._forced if self._forced != "auto" else str(self.settings.toggle)

    def _decide(self, view: View) -> Decision:
        if (mode := self._mode) in ("on", "off"):
            on = mode == "on"
            return Decision(on, SPECULATING if on else PLAIN, False, f"the setting is {mode}")  # type: ignore[arg-type]
        return self._toggle.decide(view)

    def _draft_length(self, batch: int, context: float) -> int:
        if self._gamma is not None:
            return self._gamma
        if self.settings.gamma == "ladder":
            return self._ladder.gamma
        if self.settings.gamma == "bandit":
            return self._arm
        if self._optimal is None or batch == 0:
            return min(FIRST_GAMMA, self.settings.longest)
        return self._optimal.step(self.curve, batch, context)

    def _learn_arm(self, tokens: float, seconds: float) -> None:
        self._stretch = [self._stretch[0] + 1, self._stretch[1] + tokens, self._stretch[2] + seconds]
        if self._stretch[0] >= STRETCH:
            self._bandit.observe(self._arm, self._stretch[1], self._stretch[2])
            self._arm, self._stretch = self._bandit.choose(), [0, 0.0, 0.0]


def _toggle(
    settings: Settings, running: Fingerprint, constants: ModelConstants | None
) -> tuple[Chooser, OnlineRoofline | None, str | None]:
    """The toggle, the model that its steps teach, and why there is no model where there is none."""
    config = ToggleConfig(threshold=1 + settings.eps)
    path = None if settings.calibration is None else Path(settings.calibration)
    if settings.toggle != "paper":
        toggle, online = toggle_for(config, path, running, constants)
        return toggle, online, toggle.refusal
    assert path is not None, "checked by Settings"
    try:
        calibration = read_calibration(path)
        refusal = calibration.mismatch(running)
    except UsageError as error:
        refusal = str(error)
    return PaperToggle(None if refusal else calibration.model, settings.eps), None, refusal


def _model_of(settings: Settings) -> Any:
    """The file's model, for the draft length, where it is not learned online."""
    if settings.calibration is None:
        return None
    try:
        return read_calibration(Path(settings.calibration)).model
    except UsageError:
        return None  # the toggle refuses it, with the reason; nothing is drafted
