"""Wrong samplers, each with a mistake that was made somewhere: what the tests of samplers have to catch.

They are written anew here, so that the sampler that is used needs no switches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest import mock

import torch
from torch import Tensor

from april.launch.verify import cases, offline
from april.launch.verify.offline import Sampler, Verify
from april.launch.verify.statistics import rejected
from specrollout import sampling
from specrollout.sampling import Filters

DRAWS = 1_000_000
"""Enough for every one of them."""

Accept = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(uniform, q and p of the drafted tokens) -> accepted, each [batch, gamma]."""
Rest = Callable[[Tensor, Tensor], Tensor]
"""(q, p) at the rejected place, [batch, vocabulary] -> weights of the token drawn there."""


def _right(uniform: Tensor, q: Tensor, p: Tensor) -> Tensor:
    return uniform * q < p


def _residual(q: Tensor, p: Tensor) -> Tensor:
    return (p - q).clamp(min=0)


def chain(
    accept: Accept = _right,
    rest: Rest = _residual,
    longer: int = 0,
    bonus_of_draft: bool = False,
    prefix: bool = True,
) -> Verify:
    """Verification of a chain in its plainest form, right where nothing is given.

    Args:
        longer: added to the lengths.
        bonus_of_draft: the token after a whole chain is drawn from the drafter's last distribution.
        prefix: an accepted token counts only where all before it are.
    """

    def verify(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        batch, gamma = drafted.shape
        ids = drafted.unsqueeze(-1)
        uniform = torch.rand(batch, gamma, dtype=torch.float64, generator=generator)
        accepted = accept(uniform, q.gather(-1, ids).squeeze(-1), p[:, :-1].gather(-1, ids).squeeze(-1)).long()
        count = (accepted.cumprod(-1) if prefix else accepted).sum(-1)
        rows = torch.arange(batch)
        place = count.clamp(max=gamma - 1)
        last = q[rows, place] if bonus_of_draft else p[rows, count]
        weights = torch.where((count < gamma).view(-1, 1), rest(q[rows, place], p[rows, count]), last)
        weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, p[rows, count])
        emitted = torch.cat([drafted, drafted[:, -1:]], 1)
        emitted[rows, count] = sampling.draw(weights, generator)
        return emitted, count + 1 + longer

    return verify


def _argmax(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What SGLang does on HIP, NPU and XPU at any temperature."""
    return sampling.verify_greedy(drafted, p.argmax(-1))


def _shifted(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each draft is compared with the target's distribution of the token after it."""
    return sampling.verify(drafted, q, torch.cat([p[:, 1:], p[:, -1:]], 1), generator)


def _hotter(logits: Tensor, filters: Filters) -> Tensor:
    """Drafts of another temperature than the recorded one."""
    return sampling.probabilities(logits, replace(filters, temperatures=1.3 * filters.temperatures))


def _one_after_another(logits: Tensor, filters: Filters) -> Tensor:
    """Top-p over the cumulative sum of what top-k has left."""
    left = sampling.probabilities(logits, replace(filters, need_top_p=False, top_ps=torch.ones_like(filters.top_ps)))
    plain = replace(filters, temperatures=torch.ones_like(filters.temperatures), need_top_k=False)
    return sampling.probabilities(left.log(), plain)


FAULTS: dict[str, Sampler] = {
    "residual not subtracted": Sampler(verify=chain(rest=lambda q, p: p)),
    "residual of both signs": Sampler(verify=chain(rest=lambda q, p: (p - q).abs())),
    "accepted by p alone": Sampler(verify=chain(accept=lambda uniform, q, p: uniform < p)),
    "never accepted": Sampler(verify=chain(accept=lambda uniform, q, p: uniform < 0, rest=lambda q, p: p)),
    "accepted after a rejection": Sampler(verify=chain(prefix=False)),
    "bonus from q": Sampler(verify=chain(bonus_of_draft=True)),
    "one token too many": Sampler(verify=chain(longer=1)),
    "one token too few": Sampler(verify=chain(longer=-1)),
    "positions shifted": Sampler(verify=_shifted),
    "drafts hotter than recorded": Sampler(propose=_hotter),
    "top-p of what top-k left": Sampler(probabilities=_one_after_another, propose=_one_after_another),
    "argmax at temperature 1": Sampler(verify=_argmax),
}
IMPOSSIBLE = "accepted where p = 0"
"""A fault that no number of draws shows: it needs a uniform number of exactly 0."""


def caught(draws: int = DRAWS) -> dict[str, bool]:
    """Whether the tests reject each fault."""
    found = {}
    for name, sampler in FAULTS.items():
        results = {
            test: p_value
            for case in (cases.base(), cases.filtered())
            for test, p_value in offline.p_values(case, sampler, draws).items()
        }
        found[name] = bool(rejected(results))
    found[IMPOSSIBLE] = accepts_impossible(chain(accept=lambda uniform, q, p: uniform * q <= p))
    return found


def accepts_impossible(verify: Verify) -> bool:
    """Whether a token that the target never gives is accepted when the uniform number is 0."""
    q = torch.tensor([[[1.0, 0.0]]])
    p = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    with _uniform_zero():
        emitted, _ = verify(torch.tensor([[0]]), q, p, torch.Generator())
    return int(emitted[0, 0]) == 0


@contextlib.contextmanager
def _uniform_zero() -> Iterator[None]:
    """Every uniform number is 0, the least that torch.rand gives."""
    original = torch.rand
    with mock.patch.object(torch, "rand", lambda *shape, **more: original(*shape, **more).zero_()):
        yield
