"""Settings of speculation, checked once; the only place that knows the flags ``--specrollout-*``.

They reach the engine's processes as one JSON object in the environment variable ``SPECROLLOUT``; a server without it
does not know the algorithm ``QUANT_SELF``.
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from april.errors import UsageError

VARIABLE = "SPECROLLOUT"
ALGORITHM = "QUANT_SELF"
DRAFTERS = ("w4", "w8", "mixed", "auto")
SCALINGS = ("none", "awq")
TOGGLES = ("model", "paper", "on", "off")
RULES = ("optimal", "ladder", "bandit")
LONGEST = 16
GROUPS = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class Settings:
    """One engine's settings.

    drafter
        Bits of the drafter's weights: ``w4``, ``w8``, ``mixed`` by layer, or ``auto``, by batch and acceptance.
    group
        Input channels that share a scale.
    scaling
        ``none``, or ``awq``: inputs are scaled by what the first cycles' verification shows of them.
    quantize_head
        Whether the output projection is quantized for drafting too.
    toggle
        ``model``: by the predicted speedup, both ways; ``paper``: the published rule, off to on once a rollout;
        ``on``, ``off``: always, never.
    gamma
        Draft length: a number, or the rule that chooses it: ``optimal``, ``ladder``, ``bandit``.
    longest
        No draft is longer. 2 x (longest + 1) slots of the KV cache are reserved for each running request.
    eps
        Speculation is on at a predicted speedup of 1 + eps.
    calibration
        File of ``april calibrate fit``; None: the model is learned from the engine's own steps.
    decisions
        File that the decisions are appended to, with their inputs; None: none.

    Raises UsageError where a value makes no sense.
    """

    drafter: str = "w4"
    group: int = 128
    scaling: str = "none"
    quantize_head: bool = True
    toggle: str = "model"
    gamma: int | str = "optimal"
    longest: int = 11
    eps: float = 0.05
    calibration: str | None = None
    decisions: str | None = None

    def __post_init__(self) -> None:
        _one_of("drafter", self.drafter, DRAFTERS)
        _one_of("scaling", self.scaling, SCALINGS)
        _one_of("toggle", self.toggle, TOGGLES)
        _one_of("group", self.group, GROUPS)
        _check(_whole(self.longest) and 1 <= self.longest <= LONGEST, "longest", self.longest, f"from 1 to {LONGEST}")
        fixed = _whole(self.gamma)
        right = 1 <= int(self.gamma) <= self.longest if fixed else self.gamma in RULES
        _check(right, "gamma", self.gamma, f"from 1 to --specrollout-longest ({self.longest}), or {', '.join(RULES)}")
        _check(isinstance(self.eps, (int, float)) and 0 <= self.eps < 1, "eps", self.eps, "from 0 to below 1")
        _check(
            self.toggle != "paper" or self.calibration is not None, "toggle", "paper", "with --specrollout-calibration"
        )

    def to_json(self) -> str:
        """As the environment variable holds them."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Settings:
        """From the environment variable. Raises UsageError naming the key that is wrong."""
        try:
            found = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{VARIABLE} is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise UsageError(f"{VARIABLE} holds a {type(found).__name__}; an object is expected")
        known = {field.name for field in fields(Settings)}
        if unknown := sorted(set(found) - known):
            raise UsageError(f"{VARIABLE}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        return Settings(**found)


def of_environment(environment: Mapping[str, str] = os.environ) -> Settings | None:
    """The settings of this process, or None where speculation is not asked for."""
    text = environment.get(VARIABLE)
    return None if not text else Settings.from_json(text)


def add_arguments(parser: ArgumentParser) -> None:
    """Add our flags to any parser."""
    group = parser.add_argument_group("specrollout", "speculation with the policy's own weights at 4 bits")
    default = Settings()
    add: Any = group.add_argument
    add("--specrollout", choices=["on", "off"], default="off", help="speculate in the engines (default: off)")
    add(
        "--specrollout-drafter",
        choices=DRAFTERS,
        default=default.drafter,
        help="bits of the drafter's weights; mixed: by layer; auto: by batch and measured acceptance (default: w4)",
    )
    add(
        "--specrollout-group",
        type=int,
        choices=GROUPS,
        default=default.group,
        help="input channels that share a scale (default: 128)",
    )
    add(
        "--specrollout-scaling",
        choices=SCALINGS,
        default=default.scaling,
        help="awq: finer steps for inputs that are large, as the first cycles' verification shows them (default: none)",
    )
    add(
        "--specrollout-toggle",
        choices=TOGGLES,
        default=default.toggle,
        help="model: on where the predicted speedup is 1 + eps, both ways; paper: the published rule, off to on once a "
        "rollout; on, off: always, never (default: model)",
    )
    add(
        "--specrollout-gamma",
        type=_number_or_rule,
        default=default.gamma,
        metavar="N|RULE",
        help=f"draft length, or its rule: {', '.join(RULES)} (default: optimal)",
    )
    add(
        "--specrollout-longest",
        type=int,
        default=default.longest,
        metavar="N",
        help="no draft is longer; 2 x (N + 1) KV slots are reserved for each running request (default: 11)",
    )
    add(
        "--specrollout-eps",
        type=float,
        default=default.eps,
        metavar="E",
        help="on at a predicted speedup of 1 + E (default: 0.05)",
    )
    add(
        "--specrollout-calibration",
        metavar="FILE",
        help="of april calibrate fit; without it the model is learned from the engine's own steps",
    )
    add(
        "--specrollout-head",
        choices=["quantized", "full"],
        default="quantized",
        help="the output projection of the drafter (default: quantized)",
    )


def from_args(args: Namespace, decisions: str | None = None) -> Settings | None:
    """The settings, or None with ``--specrollout off``. Raises UsageError for a value out of range."""
    if getattr(args, "specrollout", "off") != "on":
        return None
    return Settings(
        drafter=args.specrollout_drafter,
        group=args.specrollout_group,
        scaling=args.specrollout_scaling,
        quantize_head=args.specrollout_head == "quantized",
        toggle=args.specrollout_toggle,
        gamma=args.specrollout_gamma,
        longest=args.specrollout_longest,
        eps=args.specrollout_eps,
        calibration=None if args.specrollout_calibration is None else os.path.abspath(args.specrollout_calibration),
        decisions=decisions,
    )


def _number_or_rule(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _one_of(name: str, value: object, choices: tuple[Any, ...]) -> None:
    _check(value in choices, name, value, "one of " + ", ".join(map(str, choices)))


def _check(right: bool, name: str, value: object, want: str) -> None:
    if not right:
        raise UsageError(f"--specrollout-{name} is {value}: it must be {want}")
