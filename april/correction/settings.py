"""The flags of the correction, checked once. Pure: no torch, no host."""

from __future__ import annotations

import enum
import math
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from april.errors import UsageError

CLIP = (0.0, 2.0)
"""The bounds that slime's own TIS has."""


class Method(enum.Enum):
    """How off-policy tokens are weighed."""

    NONE = "none"
    MASK = "mask"
    TIS = "tis"
    DECOUPLED = "decoupled"


@dataclass(frozen=True, slots=True)
class Correction:
    """Settings of the correction.

    method
        ``--april-correction``.
    clip
        Lower and upper bound of the ratio, before decay: ``--april-correction-clip``. ``decoupled`` takes no lower one.
    decay
        Factor for each version of lag, in (0, 1]: ``--april-correction-decay``.
    reject
        Bounds of a response's geometric mean ratio; outside them it is not trained: ``--april-correction-reject``.
    numerics
        Weigh on-policy tokens too, for what the engine computes otherwise than the trainer:
        ``--april-correction-numerics``.

    Raises UsageError where a value makes no sense, or where a setting would have no effect.
    """

    method: Method = Method.NONE
    clip: tuple[float, float] = CLIP
    decay: float = 1.0
    reject: tuple[float, float] | None = None
    numerics: bool = False

    def __post_init__(self) -> None:
        low, high = self.clip
        clip, decay = f"{low:g} {high:g}", f"{self.decay:g}"
        _check(0 <= low <= 1 <= high < math.inf, "--april-correction-clip", clip, "LO HI with 0 <= LO <= 1 <= HI")
        _check(0 < self.decay <= 1, "--april-correction-decay", decay, "above 0 and at most 1 (1: no decay)")
        if self.reject is not None:
            least, most = self.reject
            want = "LO HI with 0 <= LO < 1 < HI"
            _check(0 <= least < 1 < most, "--april-correction-reject", f"{least:g} {most:g}", want)
        if not self.weighs:
            self._refuse_what_only_weights_use()
        if self.method is Method.DECOUPLED:
            _check(low == 0, "--april-correction-clip", clip, "0 HI with --april-correction decoupled")
            _check(self.decay == 1, "--april-correction-decay", decay, "1 with --april-correction decoupled")

    def _refuse_what_only_weights_use(self) -> None:
        given = {
            "--april-correction-clip": self.clip != CLIP,
            "--april-correction-decay": self.decay != 1,
            "--april-correction-reject": self.reject is not None,
            "--april-correction-numerics": self.numerics,
        }
        for flag, has in given.items():
            if has:
                raise UsageError(f"{flag} needs --april-correction tis or decoupled (it is {self.method.value})")

    @property
    def weighs(self) -> bool:
        """Whether it needs the trainer's log probabilities, so a hook in the host's loss."""
        return self.method in (Method.TIS, Method.DECOUPLED)


def _check(right: bool, flag: str, value: str, want: str) -> None:
    if not right:
        raise UsageError(f"{flag} is {value}: it must be {want}")


def add_arguments(group: Any) -> None:
    """Add the flags to an argparse group."""
    group.add_argument(
        "--april-correction",
        choices=[method.value for method in Method],
        default=Method.NONE.value,
        help="tokens of older policy versions: weighed like all others (none), not trained (mask), weighed by "
        "truncated importance ratios (tis), or as in decoupled PPO (decoupled) (default: none)",
    )
    group.add_argument(
        "--april-correction-clip",
        type=float,
        nargs=2,
        default=list(CLIP),
        metavar=("LO", "HI"),
        help="bounds of the importance ratio of a token (default: 0 2)",
    )
    group.add_argument(
        "--april-correction-decay",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="tis: multiply a weight by FACTOR for each version of lag, for example 0.9 (default: 1, no decay)",
    )
    group.add_argument(
        "--april-correction-reject",
        type=float,
        nargs=2,
        metavar=("LO", "HI"),
        help="a response whose geometric mean ratio is outside LO HI is not trained (default: none is rejected)",
    )
    group.add_argument(
        "--april-correction-numerics",
        action="store_true",
        help="weigh on-policy tokens too, where the engine's numbers differ from the trainer's (default: weight 1)",
    )


def from_args(args: Namespace) -> Correction:
    """Read a namespace; flags that it lacks have their defaults. Raises UsageError."""
    name = getattr(args, "april_correction", Method.NONE.value)
    if name not in [method.value for method in Method]:
        choices = ", ".join(method.value for method in Method)
        raise UsageError(f"--april-correction is {name}: it must be one of {choices}")
    reject = getattr(args, "april_correction_reject", None)
    return Correction(
        method=Method(name),
        clip=_pair(getattr(args, "april_correction_clip", CLIP)),
        decay=float(getattr(args, "april_correction_decay", 1.0)),
        reject=None if reject is None else _pair(reject),
        numerics=bool(getattr(args, "april_correction_numerics", False)),
    )


def _pair(values: Any) -> tuple[float, float]:
    low, high = values
    return float(low), float(high)
