"""What a round was, as an event and as metrics. ``groups_*`` count groups, ``partials_*`` responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

from april.core import RoundResult


def round_fields(result: RoundResult, rewards: Sequence[Any], lengths: Sequence[int]) -> dict[str, Any]:
    """The fields of a ``round`` event but for its times; ``rewards`` and ``lengths`` are those of trained samples.

    A reward that is no number (the host's post-processing may take any) is left out of the mean.
    """
    numbers = [float(reward) for reward in rewards if isinstance(reward, Real)]
    return {
        "rollout_id": result.plan.rollout_id,
        "policy_version": result.plan.policy_version,
        "groups_trained": len(result.trained),
        "groups_submitted": result.submitted,
        "groups_dropped": len(result.dropped),
        "groups_expired": result.expired,
        "groups_parked": result.parked,
        "over_sampling": result.plan.over_sampling,
        "leg_tokens": result.plan.leg_tokens,
        "partials_resumed": result.resumed,
        "groups_recycled": len(result.recycled),
        "partials_recycled": sum(group.partials for group in result.recycled),
        "surplus_recycled": len(result.surplus),
        "groups_carried": len(result.carried),
        "responses_carried": _unended(result),
        "stale_kv_tokens": result.stale_kv_tokens,
        "trained_tokens": result.trained_tokens,
        "generated_tokens": result.generated_tokens,
        "wasted_tokens": result.wasted_tokens,
        "recycled_tokens": result.recycled_tokens,
        "max_lag": result.max_lag,
        "off_policy_tokens": result.off_policy_tokens,
        "reward_mean": sum(numbers) / len(numbers) if numbers else None,
        "response_lengths": list(lengths),
        "drain_s": result.drain_seconds,
        "drain_errors": result.drain_errors,
        "load_after": result.load_after,
        "spans": [span.to_dict() for span in result.spans],
    }


def round_metrics(result: RoundResult) -> dict[str, float]:
    """What joins the host's own metrics of the step."""
    trained = result.trained_tokens
    return {
        "april/off_policy_share": result.off_policy_tokens / trained if trained else 0.0,
        "april/max_lag": result.max_lag,
        "april/partials_resumed": result.resumed,
        "april/partials_recycled": sum(group.partials for group in result.recycled),
        "april/surplus_recycled": len(result.surplus),
        "april/groups_carried": len(result.carried),
        "april/responses_carried": _unended(result),
        "april/stale_kv_tokens": result.stale_kv_tokens,
        "april/groups_dropped": len(result.dropped),
        "april/groups_expired": result.expired,
        "april/groups_parked": result.parked,
        "april/over_sampling": result.plan.over_sampling,
        "april/leg_tokens": result.plan.leg_tokens or result.plan.max_response_len,
        "april/generated_tokens": result.generated_tokens,
        "april/wasted_tokens": result.wasted_tokens,
        "april/recycled_tokens": result.recycled_tokens,
        "april/drain_s": result.drain_seconds,
        "april/drain_errors": len(result.drain_errors),
    }


def speculation_metrics(samples: Iterable[Any]) -> dict[str, float]:
    """How the trained samples were decoded, where an engine drafted; empty where none did.

    ``sd_share``: of the decode steps of their requests, those that were cycles of draft and verification; ``tau``: the
    tokens that a cycle added; ``alpha``: accepted over drafted tokens. From the host's sums over ``meta_info``.
    """
    infos = [info for sample in samples if (info := getattr(sample, "spec_info", None)) is not None]
    cycles, drafted, accepted, tokens = (
        sum(getattr(info, name) for info in infos)
        for name in ("spec_verify_ct", "spec_draft_token_num", "spec_accept_token_num", "completion_token_num")
    )
    if not (cycles and drafted):
        return {}
    return {
        "april/sd_share": cycles / max(cycles, tokens - accepted),
        "april/sd_tau": 1.0 + accepted / cycles,
        "april/sd_alpha": accepted / drafted,
    }


def _unended(result: RoundResult) -> int:
    """Responses that stayed in the engines."""
    return sum(not member.has_ended for group in result.carried for member in group.members)
