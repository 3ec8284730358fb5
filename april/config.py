"""Our settings, checked once. The only place that knows the names of flags, ours and those of the host that we obey."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from typing import Any

from april.core import Interrupt
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
        In an asynchronous loop what a round generates is one version old when it is trained: the cap is one less.
    buffer_dir, buffer_max_gb
        Ours: ``--april-buffer-dir`` (None: chosen by the buffer), ``--april-buffer-max-gb`` (None: no bound).
    stop_by_samples, min_group
        Ours: ``--april-stop groups|samples``, ``--april-min-group-size`` (0: half of a group).
    leg_budget
        Ours: ``--april-leg-budget``, the share of ``max_response_len`` generated in one round at most; None: auto.
    auto_over_sampling
        Ours: ``--april-over-sampling auto``.
    prioritise
        The host's ``--sglang-enable-priority-scheduling``.
    interrupt
        Ours: ``--april-interrupt``.
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
    stop_by_samples: bool = False
    min_group: int = 0
    leg_budget: float | None = 1.0
    auto_over_sampling: bool = False
    prioritise: bool = False
    interrupt: Interrupt = Interrupt.ABORT
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
        _check(
            0 <= self.min_group <= self.group_size,
            "--april-min-group-size",
            self.min_group,
            f"at most --n-samples-per-prompt ({self.group_size})",
        )
        budget = self.leg_budget
        _check(budget is None or 0 < budget <= 1, "--april-leg-budget", budget, "auto, or above 0 and at most 1")
        _check(
            budget == 1 or self.keep_partials,
            "--april-leg-budget",
            "auto" if budget is None else budget,
            "1 without --partial-rollout",
        )
        _check(
            self.keep_partials or not self.interrupt.stays,
            "--april-interrupt",
            self.interrupt.value,
            "abort without --partial-rollout",
        )
        most = self.buffer_max_gb
        _check(most is None or 0 < most < float("inf"), "--april-buffer-max-gb", most, "a positive number of gigabytes")

    @property
    def least_group(self) -> int:
        """Finished members from which a part of a group may be trained: half of it unless told, and at least 2 of 2."""
        return self.min_group or max(min(2, self.group_size), (self.group_size + 1) // 2)


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
    _add_scheduling(group)
    corrections.add_arguments(group)
    return parser


def _add_scheduling(group: Any) -> None:
    group.add_argument(
        "--april-stop",
        choices=["groups", "samples"],
        default="groups",
        help="a round ends at --rollout-batch-size finished groups, or at as many finished samples as these have; a "
        "group is then trained on its finished members, normalised by their number (default: groups)",
    )
    group.add_argument(
        "--april-min-group-size",
        type=int,
        default=0,
        metavar="N",
        help="with --april-stop samples: finished members from which a group is trained (default: half of it)",
    )
    group.add_argument(
        "--april-leg-budget",
        type=_auto_or_float,
        default=1.0,
        metavar="F|auto",
        help="no response generates more than F x --rollout-max-response-len in one round; it goes on in a later one. "
        "auto starts at 0.5 and follows the engines' utilization (default: 1.0, off)",
    )
    group.add_argument(
        "--april-interrupt",
        choices=[choice.value for choice in Interrupt],
        default=Interrupt.ABORT.value,
        help="what the end of a round does to requests that run: they return what they have (abort), or stay in the "
        "paused engines over the weight update, with their KV computed anew (retract) or kept (inplace) "
        "(default: abort)",
    )
    group.add_argument(
        "--april-over-sampling",
        choices=["fixed", "auto"],
        default="fixed",
        help="groups taken at once: --over-sampling-batch-size, or chosen each round from the measured lengths, the KV "
        "capacity and the staleness cap (default: fixed)",
    )


def _auto_or_float(text: str) -> float | str:
    return text if text == "auto" else float(text)


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
        staleness_cap=_cap(args),
        at_cap=_at_cap(getattr(args, "april_at_cap", AtCap.FINISH.value)),
        drain_deadline=float(getattr(args, "april_drain_deadline", 120.0)),
        buffer_dir=getattr(args, "april_buffer_dir", None),
        buffer_max_gb=None if (most := getattr(args, "april_buffer_max_gb", None)) is None else float(most),
        stop_by_samples=_stops_by_samples(args),
        min_group=int(getattr(args, "april_min_group_size", 0)),
        leg_budget=None if (budget := getattr(args, "april_leg_budget", 1.0)) == "auto" else float(budget),
        auto_over_sampling=getattr(args, "april_over_sampling", "fixed") == "auto",
        prioritise=bool(getattr(args, "sglang_enable_priority_scheduling", False)),
        interrupt=_interrupt(args),
        correction=corrections.from_args(args),
    )


REWARDS = "april.rewards.post_process"


def _stops_by_samples(args: Namespace) -> bool:
    """Whether a round ends by samples. Raises UsageError where the host would judge or normalise whole groups."""
    if getattr(args, "april_stop", "groups") != "samples":
        return False
    for flag in ("dynamic_sampling_filter_path", "group_rm"):
        if getattr(args, flag, None):
            name = flag.replace("_", "-")
            raise UsageError(f"--april-stop samples: --{name} needs whole groups; use --april-stop groups")
    path = getattr(args, "custom_reward_post_process_path", None)
    if path != REWARDS:
        raise UsageError(f"--april-stop samples: --custom-reward-post-process-path is {path}, it must be {REWARDS}")
    return True


def _interrupt(args: Namespace) -> Interrupt:
    """The mode. Raises UsageError for flags under which requests cannot stay in the engines."""
    value = getattr(args, "april_interrupt", Interrupt.ABORT.value)
    if value not in [choice.value for choice in Interrupt]:
        raise UsageError(f"--april-interrupt is {value}: it must be abort, retract or inplace")
    mode = Interrupt(value)
    if not mode.stays:
        return mode
    for flag, why in STAYS_NOT.items():
        if getattr(args, flag, None):
            raise UsageError(f"--april-interrupt {value}: not with --{flag.replace('_', '-')}, {why}")
    if getattr(args, "april_stop", "groups") == "samples":
        raise UsageError(f"--april-interrupt {value}: not with --april-stop samples, which trains parts of groups")
    for flag in ("sglang_pipeline_parallel_size", "sglang_pp_size"):
        if int(getattr(args, flag, None) or 1) > 1:
            raise UsageError(f"--april-interrupt {value}: not with --{flag.replace('_', '-')} above 1")
    if mode is Interrupt.INPLACE:
        for flag in ("colocate", "offload_rollout", "offload"):
            if getattr(args, flag, None):
                raise UsageError(
                    f"--april-interrupt inplace: not with --{flag.replace('_', '-')}, which releases the KV cache that "
                    "it is to keep; use --april-interrupt retract"
                )
    return mode


STAYS_NOT = {
    "mask_offpolicy_in_partial_rollout": "which goes by requests, not by tokens; use --april-correction mask",
    "rollout_external": "whose engines the overlay is not in",
    "recompute_logprobs_via_prefill": "which asks the engines when they are paused",
    "prefill_num_servers": "whose requests move between engines",
}


def _cap(args: Namespace) -> int:
    cap = int(getattr(args, "april_staleness_cap", 5))
    if not getattr(args, "april_async", False):
        return cap
    if cap == 0:
        raise UsageError("--april-staleness-cap is 0: with --async it must be at least 1, a rollout is one version old")
    return cap - 1


def _at_cap(value: str) -> AtCap:
    try:
        return AtCap(value)
    except ValueError:
        choices = ", ".join(choice.value for choice in AtCap)
        raise UsageError(f"--april-at-cap is {value}: it must be one of {choices}") from None
