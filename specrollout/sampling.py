"""The distribution that SGLang samples from, and exact verification of a drafted chain against it.

``probabilities`` gives what SGLang's ``pytorch`` sampling backend draws from, so that with and without speculation the
same distribution is sampled; ``verify`` is speculative sampling of a chain (Leviathan et al. 2023, algorithm 1; Chen et
al. 2023, algorithm 2). Tensors may be on any device. Nothing here imports SGLang.

A row of logits belongs to a request and a position, those of a request lie together. Vocabularies are wide (10^5)
and a decode step is short, so nothing is sorted where no filter needs it, and no more than it needs: a row is cut at a
threshold, which its largest few values give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

HEADS = (64, 1024)
"""How many of the largest values are looked at before all are sorted."""
BLOCK = 256
"""Tokens of a block: a token is drawn by drawing its block first."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Sampling parameters, each [rows]: temperatures, top-k (TOP_K_ALL for none), top-p, min-p.

    ``need_*``: whether any row uses the filter; SGLang keeps these per batch, so that no device must be asked.
    """

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_ps: Tensor
    need_top_k: bool
    need_top_p: bool
    need_min_p: bool
    all_greedy: bool

    @classmethod
    def of(cls, info: Any) -> Filters:
        """Those of SGLang's SamplingBatchInfo, one row a request."""
        return cls(
            temperatures=info.temperatures.view(-1),
            top_ks=info.top_ks,
            top_ps=info.top_ps,
            min_ps=info.min_ps,
            need_top_k=info.need_top_k_sampling,
            need_top_p=info.need_top_p_sampling,
            need_min_p=info.need_min_p_sampling,
            all_greedy=info.is_all_greedy,
        )

    @property
    def greedy(self) -> Tensor:
        """[rows], bool: SGLang turns temperature 0 into top-k 1."""
        return self.top_ks <= 1

    def repeat(self, positions: int) -> Filters:
        """The same for ``positions`` rows a request."""
        return replace(
            self,
            temperatures=self.temperatures.repeat_interleave(positions),
            top_ks=self.top_ks.repeat_interleave(positions),
            top_ps=self.top_ps.repeat_interleave(positions),
            min_ps=self.min_ps.repeat_interleave(positions),
        )


def fallback_reason(info: Any, backend: str = "pytorch") -> str | None:
    """Why a batch of SGLang's SamplingBatchInfo cannot be verified exactly and is decoded token by token; else None.

    Grammars, penalties and logit processors depend on the tokens before, which drafting would have to undo. A seed (set
    only with ``--enable-deterministic-inference``) fixes the token for each position, which rejection does not keep; a
    logit bias would have to be added while drafting as well. ``backend`` is SGLang's ``--sampling-backend``: flashinfer
    cuts min-p after it has renormalised twice, and others filter in ways that are not known here.
    """
    orchestrator = info.penalizer_orchestrator
    penalized = info.acc_additive_penalties is not None or info.acc_scaling_penalties is not None
    if info.grammars and any(grammar is not None for grammar in info.grammars):
        return "grammar"
    if info.vocab_mask is not None:
        return "grammar"
    if info.has_custom_logit_processor:
        return "logit_processor"
    if penalized or (orchestrator is not None and orchestrator.is_required):
        return "penalty"
    # Once a batch had one, SGLang keeps a tensor of zeros for the requests that are left.
    if info.logit_bias is not None and info.logit_bias.any():
        return "logit_bias"
    if info.sampling_seed is not None:
        return "seed"
    return _unknown_filter(info, backend)


def _unknown_filter(info: Any, backend: str) -> str | None:
    """Which filter this backend cuts in another way than ``probabilities`` does."""
    if backend == "pytorch" or info.is_all_greedy:
        return None
    if info.need_min_p_sampling:
        return "min_p"
    if backend != "flashinfer" and (info.need_top_k_sampling or info.need_top_p_sampling):
        return "sampling_backend"
    return None


def probabilities(logits: Tensor, filters: Filters, out: Tensor | None = None) -> Tensor:
    """What SGLang draws from, float32 [rows, vocabulary]; ``logits`` stay as they are, ``out`` is written where given.

    The temperature first; then top-k, top-p (over the cumulative sum of all tokens, also of those that top-k cuts) and
    min-p (of the largest) are cut, and what is left is normalised. Of tokens equally likely at the last place, those
    of lower ids are kept. A row whose own top-p is 1 is not cut by it, while SGLang loses tokens of about 1e-7 in all
    there, where the rounded sum exceeds 1.
    """
    scaled = torch.div(logits.float(), filters.temperatures.view(-1, 1), out=out)
    found = torch.softmax(scaled, -1, out=scaled)
    if not (filters.need_top_k or filters.need_top_p or filters.need_min_p):
        return found
    least = found.new_zeros(len(found))
    if filters.need_top_k or filters.need_top_p:
        least = _cut(found, filters)
    if filters.need_min_p:
        least = torch.maximum(least, found.amax(-1) * filters.min_ps)
    found.masked_fill_(found < least.view(-1, 1), 0.0)
    return found.div_(found.sum(-1, keepdim=True))


def _cut(found: Tensor, filters: Filters) -> Tensor:
    """The least probability that top-k and top-p keep, [rows]; where too many tokens have it, the last ones become 0.

    The largest few values say where a row is cut, unless they are too few: then more are looked at.
    """
    vocabulary = found.shape[1]
    # No rounded sum reaches 2.
    top_ps = torch.where(filters.top_ps < 1, filters.top_ps, 2.0)
    least = found.new_zeros(len(found))
    rows = ((top_ps < 2) | (filters.top_ks < vocabulary)).nonzero().view(-1)
    for width in (*(head for head in HEADS if head < vocabulary), vocabulary):
        if not len(rows):
            break
        head = _largest(found[rows] if len(rows) < len(found) else found, width)
        places = torch.arange(width, device=found.device)
        kept = places < filters.top_ks[rows].view(-1, 1)
        kept &= head.cumsum(-1) - head <= top_ps[rows].view(-1, 1)
        count = kept.sum(-1)
        least[rows] = head.gather(-1, count.view(-1, 1) - 1).view(-1)
        after = head.gather(-1, count.clamp(max=width - 1).view(-1, 1)).view(-1)
        _drop_ties(found, least, rows, count, (count < width) & (after == least[rows]))
        rows = rows[count == width]
    return least


def _largest(values: Tensor, width: int) -> Tensor:
    """The ``width`` largest of each row, largest first."""
    if width == values.shape[1]:
        return values.sort(-1, descending=True).values
    return values.topk(width).values


def _drop_ties(found: Tensor, least: Tensor, rows: Tensor, count: Tensor, tied: Tensor) -> None:
    """Leave ``count`` tokens in each of ``rows`` where ``tied``: of those as likely as the least, the first ones."""
    if not tied.any():
        return
    rows, count = rows[tied], count[tied]
    values, limit = found[rows], least[rows].view(-1, 1)
    equal = values == limit
    room = count.view(-1, 1) - (values > limit).sum(-1, keepdim=True)
    found[rows] = values.masked_fill_(equal & (equal.cumsum(-1) > room), 0.0)


def draw(weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One token a row of ``weights`` [rows, vocabulary], which need not sum to 1: int64 [rows], never one of weight 0.

    A block of tokens is drawn first, then one of its tokens: inverse transform sampling in float64, since the steps of
    float32 would be coarser than the tail of a vocabulary. It is fifty times faster on a CPU than torch.multinomial.
    """
    vocabulary = weights.shape[1]
    blocks = -(-vocabulary // BLOCK)
    if blocks == 1:
        return _inverse(weights, generator)
    whole = vocabulary // BLOCK * BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1)
    if whole < vocabulary:
        sums = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], 1)
    start = _inverse(sums, generator).mul_(BLOCK).view(-1, 1)
    places = start + torch.arange(BLOCK, device=weights.device)
    inside = weights.gather(1, places.clamp(max=vocabulary - 1))
    inside.masked_fill_(places >= vocabulary, 0.0)
    return _inverse(inside, generator).add_(start.view(-1))


def _inverse(weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """One place a row, int64 [rows]: the first whose cumulative weight exceeds a uniform part of the whole."""
    sums = weights.cumsum(-1, dtype=torch.float64)
    uniform = torch.rand(len(sums), 1, dtype=torch.float64, device=sums.device, generator=generator)
    # 1 - 2^-53 is the largest uniform number, so that the product stays below the last sum.
    return torch.searchsorted(sums, uniform.mul_(sums[:, -1:]), right=True).view(-1)


def argmax(logits: Tensor) -> Tensor:
    """The first of the largest in each row [..., vocabulary], as torch.argmax, which is eight times slower on a CPU."""
    *shape, vocabulary = logits.shape
    if vocabulary % BLOCK or logits.device.type != "cpu":
        return logits.argmax(-1)
    blocks = logits.reshape(-1, vocabulary // BLOCK, BLOCK)
    block = blocks.amax(-1).argmax(-1)
    inside = blocks[torch.arange(len(blocks)), block].argmax(-1)
    return block.mul_(BLOCK).add_(inside).view(shape)


def verify(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Accept a prefix of the drafted chain and draw one token more, so that all follow ``p``.

    Args:
        drafted: [batch, gamma], each drawn from its row of ``q``.
        q: [batch, gamma, vocabulary], what they were drawn from; any strides.
        p: [batch, gamma + 1, vocabulary], the target's, filtered alike.

    Returns:
        The tokens [batch, gamma + 1], and how many of them count, [batch]: the accepted and the drawn one. What lies
        behind them means nothing.
    """
    batch, gamma = drafted.shape
    tokens = drafted.unsqueeze(-1)
    p_drafted = p[:, :gamma].gather(-1, tokens).squeeze(-1)
    q_drafted = q.gather(-1, tokens).squeeze(-1)
    uniform = torch.rand(batch, gamma, dtype=torch.float64, device=p.device, generator=generator)
    # u < p / q without the division; strict, so that p = 0 is rejected.
    accepted = (uniform * q_drafted < p_drafted).cumprod(-1).sum(-1)
    requests = torch.arange(batch, device=p.device)
    target = p[requests, accepted]
    weights = (target - q[requests, accepted.clamp(max=gamma - 1)]).clamp_(min=0.0)
    # After the whole chain there is no draft; a residual of 0 means that p and q differ by rounding only.
    plain = (accepted == gamma) | (weights.amax(-1) == 0)
    drawn = draw(torch.where(plain.view(-1, 1), target, weights), generator)
    emitted = torch.cat([drafted, drawn.view(-1, 1)], 1)
    emitted[requests, accepted] = drawn
    return emitted, accepted + 1


def verify_greedy(drafted: Tensor, target_argmax: Tensor) -> tuple[Tensor, Tensor]:
    """``verify`` where every request is greedy: [batch, gamma] against the target's argmax [batch, gamma + 1]."""
    accepted = (drafted == target_argmax[:, :-1]).cumprod(-1).sum(-1)
    # The accepted tokens are the target's own, and so is the one after them.
    return target_argmax, accepted + 1
