"""The cases that a sampler has to get right: small language models, their drafters, and sampling parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

ALL = 1 << 30
"""SGLang's top-k of everything."""
VOCABULARY = 5
WIDE = 300
"""More tokens than a block has, from which a token is drawn."""


@dataclass(frozen=True, slots=True)
class Case:
    """Logits of the next token after each token, [vocabulary, vocabulary], of the policy and of its drafter."""

    name: str
    target: Tensor
    draft: Tensor
    gamma: int = 3
    temperature: float = 1.0
    top_k: int = ALL
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def title(self) -> str:
        """Name and draft length."""
        return f"{self.name}, gamma {self.gamma}"

    @property
    def tokens(self) -> int:
        """How many emitted tokens are counted together."""
        return 1 if len(self.target) > VOCABULARY else self.gamma + 1


def cases(gammas: Iterable[int] | None = None) -> Iterator[Case]:
    """Every case at each of ``gammas``; by default each at one draft length, 1 to 4 in turn."""
    chosen = None if gammas is None else list(gammas)
    for number, case in enumerate(_cases()):
        for gamma in [number % 4 + 1] if chosen is None else chosen:
            yield replace(case, gamma=gamma)
    yield _wide()


def base() -> Case:
    """A drafter that is often right: where most faults show."""
    target = _logits(1)
    return Case("plain", target, target + _logits(2, 0.8))


def filtered() -> Case:
    """Where top-k cuts much, so that it matters whether top-p counts what it cut."""
    return replace(base(), name="top-k and top-p", temperature=1.5, top_k=3, top_p=0.7)


def _logits(seed: int, spread: float = 1.5, vocabulary: int = VOCABULARY) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(vocabulary, vocabulary, generator=generator)


def _cases() -> Iterator[Case]:
    plain = base()
    impossible = float("-inf")
    even = torch.arange(VOCABULARY) % 2 == 0
    for temperature in (0.3, 1.0, 1.5):
        yield replace(plain, name=f"temperature {temperature}", temperature=temperature)
    yield replace(plain, name="top-k", top_k=3)
    yield replace(plain, name="top-p", top_p=0.8)
    yield replace(plain, name="min-p", min_p=0.2)
    yield filtered()
    yield replace(plain, name="all filters", temperature=1.2, top_k=4, top_p=0.9, min_p=0.1)
    yield replace(plain, name="q = p", draft=plain.target)
    yield replace(
        plain,
        name="nothing in common",
        target=plain.target.masked_fill(even, impossible),
        draft=plain.draft.masked_fill(~even, impossible),
    )
    yield replace(plain, name="q nearly one token", draft=6 * plain.draft)
    yield replace(plain, name="p with zeros", target=plain.target.masked_fill(torch.eye(VOCABULARY) > 0, impossible))


def _wide() -> Case:
    target = _logits(3, vocabulary=WIDE)
    return Case("wide vocabulary", target, target + _logits(4, 0.8, WIDE), gamma=1)
