"""What is right, worked out slowly: filtered distributions and laws of emitted tokens, in float64 and by enumeration.

Shares no code with ``specrollout.sampling``. A small language model is a table: row ``i`` has the logits of the token
after token ``i``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

Table = Sequence[Sequence[float]]


def filtered(
    logits: Sequence[float], temperature: float = 1.0, top_k: int = 1 << 30, top_p: float = 1.0, min_p: float = 0.0
) -> list[float]:
    """Probabilities of each token after temperature, top-k, top-p and min-p as SGLang's ``pytorch`` backend cuts them.

    A token stays when fewer than ``top_k`` come before it, those before it have at most ``top_p`` together, and it has
    ``min_p`` of the most likely token's probability.
    """
    most = max(logits)
    weights = [math.exp((logit - most) / temperature) for logit in logits]
    whole = math.fsum(weights)
    kept: dict[int, float] = {}
    before = 0.0
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    for place, token in enumerate(order):
        share = weights[token] / whole
        if place < top_k and (top_p >= 1 or before <= top_p) and weights[token] >= min_p * weights[order[0]]:
            kept[token] = share
        before += share
    left = math.fsum(kept.values())
    return [kept.get(token, 0.0) / left for token in range(len(weights))]


def joint(target: Table, tokens: int, start: int = 0) -> list[float]:
    """Probabilities of all sequences of ``tokens`` tokens after ``start``, in lexical order, by those of one token."""
    found = []
    for sequence in itertools.product(range(len(target)), repeat=tokens):
        steps = zip((start, *sequence), sequence, strict=False)
        found.append(math.prod(target[before][token] for before, token in steps))
    return found


def lengths(target: Table, draft: Table, gamma: int, start: int = 0) -> list[float]:
    """Probability that verification emits 1, 2, ..., gamma + 1 tokens.

    A drafted token is accepted with probability min(p, q) in all, whatever comes after it.
    """
    vocabulary = range(len(target))
    reached = [float(token == start) for token in vocabulary]
    at_least = [1.0]
    for _ in range(gamma):
        reached = [
            math.fsum(reached[before] * min(target[before][token], draft[before][token]) for before in vocabulary)
            for token in vocabulary
        ]
        at_least.append(math.fsum(reached))
    return [one - after for one, after in zip(at_least, [*at_least[1:], 0.0], strict=True)]
