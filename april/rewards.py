"""The hosts' ``--custom-reward-post-process-path`` for ``--april-stop samples``: groups of their real size.

The hosts normalise rewards as a matrix of ``rollout_batch_size`` rows, which needs whole groups. Here a group is what
its members say it is; those that another round trains count with the reward that they had
(``metadata["april"]["siblings"]``).
"""

from __future__ import annotations

import statistics
from typing import Any

from april import samples

GROUP_NORMALISED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
WITH_STD = ("grpo", "gspo", "cispo")
EPSILON = 1e-6


def post_process(args: Any, batch: list[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards and what the host trains with, one for each sample of ``batch``.

    GRPO (Shao et al. 2024, eq. 3): the reward less the mean of its group, over the group's standard deviation.
    """
    raw = [sample.get_reward_value(args) for sample in batch]
    if args.advantage_estimator not in GROUP_NORMALISED or not args.rewards_normalization:
        return raw, raw
    groups: dict[int, list[float]] = {}
    for sample, reward in zip(batch, raw, strict=True):
        if sample.group_index not in groups:
            groups[sample.group_index] = [_value(args, other) for other in samples.siblings_of(sample)]
        groups[sample.group_index].append(reward)
    with_std = args.advantage_estimator in WITH_STD and args.grpo_std_normalization
    return raw, [
        _normalised(reward, groups[sample.group_index], with_std) for sample, reward in zip(batch, raw, strict=True)
    ]


def _normalised(reward: float, group: list[float], with_std: bool) -> float:
    centred = reward - statistics.fmean(group)
    if not with_std:
        return centred
    return centred / ((statistics.stdev(group) if len(group) > 1 else 0.0) + EPSILON)


def _value(args: Any, reward: Any) -> float:
    return float(reward[args.reward_key] if args.reward_key else reward)
