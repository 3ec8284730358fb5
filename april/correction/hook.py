"""The host's TIS hook (``--custom-tis-function-path``): slime and miles call ``correct`` once per micro-batch.

No state and no side effect: with ``--recompute-loss-function`` the host calls it twice for one loss. Under context
parallelism a rank holds a slice of each response, cut by the host's own function; sums over a response go over the
ranks.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from april.correction import weights as w
from april.correction.lags import runs_of
from april.correction.settings import Correction, from_args
from april.errors import AprilError

CP_MODULES = ("slime.backends.megatron_utils.cp_utils", "miles.backends.training_utils.cp_utils")


@dataclass(frozen=True, slots=True)
class Slices:
    """What this rank holds of each response: ``cut(i, values)`` gives its part; ``group`` the ranks with the rest."""

    cut: Callable[[int, torch.Tensor], torch.Tensor]
    group: Any = None

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Sums over whole responses from those over this rank's parts."""
        if self.group is not None:
            torch.distributed.all_reduce(sums, group=self.group)
        return sums


@torch.no_grad()
def _weigh(
    settings: Correction, log_r: torch.Tensor, lags: torch.Tensor, counted: torch.Tensor, lengths: list[int], on: Slices
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The weight of each token ``[n]``, whether its ratio was truncated ``[n]``, rejected responses ``[responses]``."""
    which = w.corrected(lags, counted, settings)
    weights = w.token_weights(log_r, lags, which, settings)
    ratio = log_r.exp()
    clipped = which & ((ratio < settings.clip[0]) | (ratio > settings.clip[1]))
    sums = torch.stack(
        [
            w.response_sums(torch.where(which, log_r, 0.0), lengths),
            w.response_sums(which.float(), lengths),
        ]
    )
    log_sums, counts = on.total(sums) if settings.reject is not None else sums
    out = w.rejected(log_sums, counts, settings.reject)
    return torch.where(w.spread(out, lengths), 0.0, weights), clipped, out


def correct(
    args: Any,
    *,
    pg_loss: torch.Tensor,
    train_log_probs: list[torch.Tensor],
    rollout_log_probs: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    total_lengths: list[int],
    response_lengths: list[int],
    **host: Any,
) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, torch.Tensor]]:
    """The loss with its tokens weighed, the loss masks with rejected responses at 0, and metrics of each token.

    ``pg_loss`` is ``[n]``: this rank's tokens of all responses. ``train_log_probs`` (``log pi_old``) and
    ``rollout_log_probs`` (``log mu``, each token's from its own leg) are the same by response. ``loss_masks`` hold
    whole responses. The host averages each metric over the tokens of its original masks.

    Raises AprilError where the lags of a response are not known.
    """
    settings = from_args(args)
    if not settings.weighs:
        return pg_loss, loss_masks, {}
    on = _slices(args, total_lengths, response_lengths, host)
    lags = _joined([on.cut(i, _lags(length)) for i, length in enumerate(response_lengths)], pg_loss).to(pg_loss.device)
    counted = _joined([on.cut(i, mask) for i, mask in enumerate(loss_masks)], pg_loss) != 0
    lengths = [part.numel() for part in rollout_log_probs]
    if not lags.numel() == counted.numel() == sum(lengths) == pg_loss.numel():
        raise AprilError(
            f"{lags.numel()} lags and {counted.numel()} entries of loss masks for {sum(lengths)} log probabilities"
        )
    log_r = w.log_ratios(_joined(train_log_probs, pg_loss).detach(), _joined(rollout_log_probs, pg_loss), counted)
    weights, clipped, out = _weigh(settings, log_r, lags, counted, lengths, on)
    # Not 0 * loss: a rejected response may have a loss that is no number.
    weighed = torch.where(weights == 0, 0.0, pg_loss * weights)
    masks = [torch.zeros_like(mask) if gone else mask for mask, gone in zip(loss_masks, out.tolist(), strict=True)]
    return weighed, masks, _metrics(log_r, lags, weights, clipped, w.spread(out, lengths))


def _lags(length: int) -> torch.Tensor:
    """The lag of each token of a whole response, on the CPU."""
    lags, counts = torch.tensor(runs_of(length), dtype=torch.long).reshape(-1, 2).unbind(1)
    return lags.repeat_interleave(counts).float()


def _metrics(
    log_r: torch.Tensor, lags: torch.Tensor, weights: torch.Tensor, clipped: torch.Tensor, out: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Values of each token; ``april.telemetry.offpolicy`` derives from their means what is no mean."""
    off = (lags > 0).float()
    divergence = w.k3(log_r)
    return {
        "april_counted": torch.ones_like(weights),
        "april_off_policy": off,
        "april_lag": lags.clone(),
        "april_weight": weights.clone(),
        "april_weight_sq": weights * weights,
        "april_clipped": clipped.float(),
        "april_rejected": out.float(),
        "april_kl_off": divergence * off,
        "april_kl_on": divergence * (1 - off),
    }


def _joined(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(parts), dim=0) if parts else like.new_zeros(0)


def _slices(args: Any, total_lengths: list[int], response_lengths: list[int], host: dict[str, Any]) -> Slices:
    """How the loaded host cuts responses: not at all without context parallelism."""
    module = next((sys.modules[name] for name in CP_MODULES if name in sys.modules), None)
    group = None if module is None else _group(module, host.get("parallel_state"))
    if module is None or group is None:
        return Slices(lambda i, values: values)
    cut = module.slice_log_prob_with_cp
    takes_format = "qkv_format" in inspect.signature(cut).parameters
    longest = host.get("max_seq_lens")

    def slice_of(i: int, values: torch.Tensor) -> torch.Tensor:
        form = (args.qkv_format, None if longest is None else longest[i]) if takes_format else ()
        sliced: torch.Tensor = cut(values, total_lengths[i], response_lengths[i], *form)
        return sliced

    return Slices(slice_of, group)


def _group(module: Any, parallel_state: Any) -> Any:
    """The ranks that share a response, or None where each holds its own whole (miles hands its state to the hook)."""
    if parallel_state is not None:
        return parallel_state.cp.group if parallel_state.cp.size > 1 else None
    return module.mpu.get_context_parallel_group() if module.mpu.get_context_parallel_world_size() > 1 else None
