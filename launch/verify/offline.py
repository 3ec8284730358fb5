"""Samplers against exact laws, on millions of draws: no server, no model.

An end-to-end test of some ten thousand tokens shows even a gross fault of a sampler only weakly. The sampler alone can
be drawn from ten million times, with models so small that the probability of every sequence is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from april.launch.verify import reference
from april.launch.verify.cases import Case
from april.launch.verify.statistics import chi_square
from specrollout import sampling
from specrollout.sampling import Filters

DRAWS = 10_000_000
CHUNK = 1 << 17
WIDE_CHUNK = 1 << 12
SEED = 20_260_101

Probabilities = Callable[[Tensor, Filters], Tensor]
Verify = Callable[[Tensor, Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Sampler:
    """What is tested: the three things that a speculative sampler does. ``propose``: what drafts are drawn from."""

    probabilities: Probabilities = sampling.probabilities
    verify: Verify = sampling.verify
    propose: Probabilities = sampling.probabilities


def p_values(case: Case, sampler: Sampler | None = None, draws: int = DRAWS, seed: int = SEED) -> dict[str, float]:
    """How well the emitted tokens, and how many there are, follow their exact laws."""
    with _one_thread():
        tokens, lengths = counts(case, sampler or Sampler(), draws, seed)
    target, draft = (exact(case, logits) for logits in (case.target, case.draft))
    return {
        f"{case.title}: tokens": chi_square(tokens.tolist(), reference.joint(target, case.tokens)),
        f"{case.title}: lengths": chi_square(lengths.tolist(), reference.lengths(target, draft, case.gamma)),
    }


def exact(case: Case, logits: Tensor) -> list[list[float]]:
    """Probabilities of the next token after each token."""
    rows = logits.double().tolist()
    return [reference.filtered(row, case.temperature, case.top_k, case.top_p, case.min_p) for row in rows]


def counts(case: Case, sampler: Sampler, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """How often each sequence of first tokens came, [vocabulary^tokens], and each length from 1, [gamma + 1].

    Lengths that cannot be are counted with the longest.
    """
    vocabulary = len(case.target)
    filters = _filters(case)
    target, draft, proposal = (
        made(logits, filters)
        for made, logits in (
            (sampler.probabilities, case.target),
            (sampler.probabilities, case.draft),
            (sampler.propose, case.draft),
        )
    )
    generator = torch.Generator().manual_seed(seed)
    chunk = CHUNK if vocabulary < WIDE_CHUNK // 64 else WIDE_CHUNK
    sequences = torch.zeros(vocabulary**case.tokens, dtype=torch.long)
    lengths = torch.zeros(case.gamma + 1, dtype=torch.long)
    for done in range(0, draws, chunk):
        size = min(chunk, draws - done)
        chain = torch.zeros(size, case.gamma + 1, dtype=torch.long)
        for place in range(case.gamma):
            chain[:, place + 1] = sampling.draw(proposal[chain[:, place]], generator)
        emitted, length = sampler.verify(chain[:, 1:], draft[chain[:, :-1]], target[chain], generator)
        lengths += torch.bincount(length.clamp(1, case.gamma + 1) - 1, minlength=case.gamma + 1)
        index = torch.zeros(size, dtype=torch.long)
        for token in _first_tokens(emitted, length, target, case.tokens, generator):
            index.mul_(vocabulary).add_(token)
        sequences += torch.bincount(index, minlength=len(sequences))
    return sequences, lengths


def _first_tokens(
    emitted: Tensor, length: Tensor, target: Tensor, count: int, generator: torch.Generator
) -> Iterable[Tensor]:
    """The first ``count`` tokens, each [draws]; those that were not emitted are drawn from the target."""
    before = torch.zeros_like(length)
    for place in range(count):
        token = emitted[:, place].clone()
        missing = (length <= place).nonzero().view(-1)
        token[missing] = sampling.draw(target[before[missing]], generator)
        yield token
        before = token


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Operations are small: on a busy machine threads that wait for each other make them twenty times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _filters(case: Case) -> Filters:
    """The case's parameters for each row of its tables."""
    rows = len(case.target)
    return Filters(
        torch.full((rows,), case.temperature),
        torch.full((rows,), case.top_k, dtype=torch.int32),
        torch.full((rows,), case.top_p),
        torch.full((rows,), case.min_p),
        case.top_k < rows,
        case.top_p < 1,
        case.min_p > 0,
        case.top_k == 1,
    )
