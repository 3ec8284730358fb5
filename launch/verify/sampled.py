"""Sampled responses of a speculating server against the exact law, which the same server gives without speculation.

A prompt's first token comes with the prefill; those after it are emitted by cycles. With a top-k their laws are small
enough to ask for: every context that can come is asked for the log probabilities of its next token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from april.errors import AprilError
from april.launch.verify import reference
from april.launch.verify.server import Server
from april.launch.verify.statistics import chi_square

TOKENS = 3
PROMPT = [5, 6, 7]
PART = 64
"""Requests that are sent together."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Sampling parameters and a draft length."""

    gamma: int
    temperature: float = 1.0
    top_k: int = 5
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def sampling(self) -> dict[str, Any]:
        """As a request has them."""
        names = ("temperature", "top_k", "top_p", "min_p")
        return {**{name: getattr(self, name) for name in names}, "max_new_tokens": TOKENS, "ignore_eos": True}

    @property
    def title(self) -> str:
        """For the report."""
        return (
            f"server, gamma {self.gamma}, temperature {self.temperature}, top-k {self.top_k}, top-p {self.top_p}, "
            f"min-p {self.min_p}"
        )


SETTINGS = (
    Setting(2),
    Setting(1, temperature=2.0),
    Setting(3, temperature=1.5, top_k=4, top_p=0.9, min_p=0.02),
)


def p_values(engine: Server, vocabulary: int, samples: int, settings: Sequence[Setting] = SETTINGS) -> dict[str, float]:
    """How well the responses of ``samples`` requests follow their law, by setting."""
    found = {}
    for setting in settings:
        engine.speculation("off")
        expected = law(engine, setting, vocabulary)
        engine.speculation("on", setting.gamma)
        seen = draw(engine, setting, samples)
        sequences = sorted({*expected, *seen})
        found[setting.title] = chi_square(
            [seen[one] for one in sequences], [expected.get(one, 0.0) for one in sequences]
        )
    return found


def law(engine: Server, setting: Setting, vocabulary: int) -> dict[tuple[int, ...], float]:
    """Probabilities of all responses that can come."""
    known: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(TOKENS):
        longer: dict[tuple[int, ...], float] = {}
        contexts = list(known)
        for context, rows in zip(contexts, _next(engine, contexts, vocabulary), strict=True):
            weights = reference.filtered(rows, setting.temperature, setting.top_k, setting.top_p, setting.min_p)
            longer |= {(*context, token): known[context] * p for token, p in enumerate(weights) if p}
        known = longer
    return known


def _next(engine: Server, contexts: list[tuple[int, ...]], vocabulary: int) -> list[list[float]]:
    """Log probabilities of the next token, [vocabulary], for each context."""
    found = []
    sampling = {"temperature": 1.0, "max_new_tokens": 1, "ignore_eos": True}
    for first in range(0, len(contexts), PART):
        part = contexts[first : first + PART]
        answers = engine.generate(
            [[*PROMPT, *context] for context in part],
            sampling,
            return_logprob=True,
            token_ids_logprob=list(range(vocabulary)),
        )
        for answer in answers:
            rows = answer["meta_info"]["output_token_ids_logprobs"][0]
            by_token = {token: logprob for logprob, token, _ in rows}
            found.append([by_token[token] for token in range(vocabulary)])
    return found


def draw(engine: Server, setting: Setting, samples: int) -> Counter[tuple[int, ...]]:
    """How often each response came. Raises AprilError where nothing was speculated."""
    before, seen = engine.report()["cycles"], Counter[tuple[int, ...]]()
    for done in range(0, samples, PART):
        size = min(PART, samples - done)
        seen.update(tuple(one["output_ids"]) for one in engine.generate([PROMPT] * size, setting.sampling))
    if engine.report()["cycles"] == before:
        raise AprilError(f"{setting.title}: no cycle was run: the responses were not speculated")
    return seen
