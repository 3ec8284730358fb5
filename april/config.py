"""Our settings, checked once. The only place that knows the names of flags, ours and those of the host that we obey."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from typing import Any

from april.correction import settings as corrections
from april.correction.settings import Correction
from april.errors import UsageError
from april.staleness import AtCap


@dataclass(frozen=True, slots=True)
class AprilConfig:
    """One round's settings.

    target, over_sampling
        Finished groups that end a round, and groups taken at once (host: ``--rollout-batch-size``,
        ``--over-sampling-batch-size``).
    group_size, max_response_len
        Responses of a prompt, and tokens of a response (host: ``--n-samples-per-prompt``,
        ``--rollout-max-response-len``).
    keep_partials
        The host's ``--partial-rollout``. Off: what is unfinished starts again, and versions never mix.
    staleness_cap, at_cap, drain_deadline
        Ours: ``--april-staleness-cap`` (policy versions), ``--april-at-cap``, ``--april-drain-deadline`` (seconds).
    buffer_dir, buffer_max_gb
        Ours: ``--april-buffer-dir`` (None: chosen by the buffer), ``--april-buffer-max-gb`` (None: no bound).
    correction
        Ours: ``--april-correction`` and its ``--april-correction-*``.

    Raises UsageError where a value makes no sense.
    """

    target: int
    over_sampling: int
    group_size: int
    max_response_len: int
    keep_partials: bool = True
    staleness_cap: int = 5
    at_cap: AtCap = AtCap.FINISH
    drain_deadline: float = 120.0
    buffer_dir: str | None = None
    buffer_max_gb: float | None = None
    correction: Correction = field(default_factory=Correction)

    def __post_init__(self) -> None:
        _check(self.target >= 1, "--rollout-batch-size", self.target, "at least 1")
        _check(
            self.over_sampling >= self.target,
            "--over-sampling-batch-size",
            self.over_sampling,
            f"at least --rollout-batch-size ({self.target})",
        )
        _check(self.group_size >= 1, "--n-samples-per-prompt", self.group_size, "at least 1")
        _check(self.max_response_len >= 1, "--rollout-max-response-len", self.max_response_len, "at least 1")
        _check(self.staleness_cap >= 0, "--april-staleness-cap", self.staleness_cap, "0 or more policy versions")
        _check(
            0 < self.drain_deadline < float("inf"),
            "--april-drain-deadline",
            self.drain_deadline,
            "a positive number of seconds",
        )
        most = self.buffer_max_gb
        _check(most is None or 0 < most < float("inf"), "--april-buffer-max-gb", most, "a positive number of gigabytes")


def _check(right: bool, flag: str, value: object, want: str) -> None:
    if not right:
        raise UsageError(f"{flag} is {value}: it must be {want}")


def add_arguments(parser: ArgumentParser) -> ArgumentParser:
    """Add our flags to any parser (the host's ``add_custom_arguments`` hook has this signature) and return it."""
    group = parser.add_argument_group("april", "active partial rollouts")
    group.add_argument(
        "--april-staleness-cap",
        type=int,
        default=5,
        metavar="VERSIONS",
        help="no token is trained that is more than this many policy versions old (default: 5)",
    )
    group.add_argument(
        "--april-at-cap",
        choices=[choice.value for choice in AtCap],
        default=AtCap.FINISH.value,
        help="a group at the cap: the round waits for it (finish), it starts again (restart), or its tokens beyond the "
        "cap get no weight (mask) (default: finish)",
    )
    group.add_argument(
        "--april-drain-deadline",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="the longest that the end of a round may take, over all engines (default: 120)",
    )
    group.add_argument(
        "--april-buffer-dir",
        metavar="DIR",
        help="where the buffer of partials lives (default: under --save, else in the run directory)",
    )
    group.add_argument(
        "--april-buffer-max-gb",
        type=float,
        metavar="GB",
        help="beyond so much payload, the groups that come last start again from their prompts (default: no bound)",
    )
    corrections.add_arguments(group)
    return parser


def from_args(args: Namespace) -> AprilConfig:
    """Read the host's namespace. Our own flags may be missing from it (hooks used without ``april train``): defaults.

    Raises UsageError for a value out of range.
    """
    target = int(args.rollout_batch_size)
    over_sampling: Any = getattr(args, "over_sampling_batch_size", None)
    return AprilConfig(
        target=target,
        over_sampling=target if over_sampling is None else int(over_sampling),
        group_size=int(args.n_samples_per_prompt),
        max_response_len=int(args.rollout_max_response_len),
        keep_partials=bool(getattr(args, "partial_rollout", False)),
        staleness_cap=int(getattr(args, "april_staleness_cap", 5)),
        at_cap=_at_cap(getattr(args, "april_at_cap", AtCap.FINISH.value)),
        drain_deadline=float(getattr(args, "april_drain_deadline", 120.0)),
        buffer_dir=getattr(args, "april_buffer_dir", None),
        buffer_max_gb=None if (most := getattr(args, "april_buffer_max_gb", None)) is None else float(most),
        correction=corrections.from_args(args),
    )


def _at_cap(value: str) -> AtCap:
    try:
        return AtCap(value)
    except ValueError:
        choices = ", ".join(choice.value for choice in AtCap)
        raise UsageError(f"--april-at-cap is {value}: it must be one of {choices}") from None
