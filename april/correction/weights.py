"""The weights, on plain tensors. All token tensors have shape ``[n]``; responses lie one after the other.

Symbols: ``mu`` the probability that the engine gave a token when it was generated (under the version of its leg),
``pi_old`` the trainer's at the start of this step, ``r = pi_old / mu``, ``l`` the token's lag in policy versions.

Truncated importance sampling: Ionides 2008; for language models with two engines: Yao et al. 2025, "Your Efficient RL
Framework Secretly Brings You Off-Policy RL Training". Decoupled objective: Hilton et al. 2022 (arXiv 2110.00641),
AReaL (arXiv 2505.24298, section 5.2). The estimator k3: Schulman 2020, "Approximating KL Divergence".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from april.correction.settings import Correction

K3_BOUND = 10.0
"""The log ratio is clamped to so much, in metrics only: one outlier must not make them infinite."""


def log_ratios(pi_old: torch.Tensor, mu: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """``log r`` of each token, from log probabilities; 0 where the loss mask is 0 (tool output has no ``mu``)."""
    return torch.where(counted, pi_old.float() - mu.float(), 0.0)


def corrected(lags: torch.Tensor, counted: torch.Tensor, settings: Correction) -> torch.Tensor:
    """Which tokens are weighed at all: those of older versions (all, with ``numerics``) that the loss counts."""
    return counted if settings.numerics else counted & (lags > 0)


def token_weights(log_r: torch.Tensor, lags: torch.Tensor, which: torch.Tensor, settings: Correction) -> torch.Tensor:
    """``clip(r, lo, hi) * decay**l`` where ``which``, and exactly 1 elsewhere; float32."""
    low, high = settings.clip
    weights = log_r.exp().clamp(low, high)
    if settings.decay != 1:
        weights = weights * torch.pow(torch.full_like(weights, settings.decay), lags)
    return torch.where(which, weights, 1.0)


def response_sums(values: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The sum over each response, shape ``[len(lengths)]``."""
    if not lengths:
        return values.new_zeros(0)
    return torch.stack([part.sum() for part in values.split([int(length) for length in lengths])])


def rejected(log_sums: torch.Tensor, counts: torch.Tensor, bounds: tuple[float, float] | None) -> torch.Tensor:
    """Which responses are not trained: those whose geometric mean ratio, over weighed tokens, is out of bounds.

    ``exp(log_sums / counts)`` with the sums of ``log r`` and the counts of weighed tokens, both ``[responses]``. A
    response without a weighed token has mean 1, which all bounds contain.
    """
    if bounds is None:
        return torch.zeros_like(counts, dtype=torch.bool)
    mean = (log_sums / counts.clamp(min=1)).exp()
    # Written so that a mean which is no number is rejected.
    inside = (mean >= bounds[0]) & (mean <= bounds[1])
    return ~inside


def spread(values: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The value of each response, ``[responses]``, on each of its tokens."""
    repeats = torch.tensor([int(length) for length in lengths], dtype=torch.long, device=values.device)
    return values.repeat_interleave(repeats, output_size=int(sum(lengths)))


def k3(log_r: torch.Tensor) -> torch.Tensor:
    """``(r - 1) - log r`` of each token: its mean over tokens drawn from ``mu`` estimates KL(mu || pi_old) in nats."""
    bounded = log_r.clamp(-K3_BOUND, K3_BOUND)
    return bounded.expm1() - bounded
