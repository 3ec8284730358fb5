"""Greedy decoding with speculation against a stock server: the same tokens, and the same log probabilities."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from april.launch.verify import server
from april.launch.verify.server import Server

GAMMA = 3
TIE = {"float32": 0.0, "bfloat16": 0.15}
"""Two tokens are a tie where their log probabilities differ by less: bfloat16 rounds a logit of 16 to steps of 1/8."""
NEAR = {"float32": 1e-3, "bfloat16": 0.5}
"""How far a log probability may be from the stock server's."""
SWITCHED = "switched"
"""Name of the case in which speculation goes on and off and drafts change their length."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how many tokens are wanted."""

    prompt: list[int]
    tokens: int


@dataclass(slots=True)
class Outcome:
    """How many responses are equal, differ first where two tokens tie, or differ without a reason."""

    equal: int = 0
    ties: int = 0
    differ: int = 0
    tokens: int = 0
    tau: float | None = None
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing differs without a reason, and there was speculation."""
        return not self.differ and self.equal > 0 and self.tau is not None


def requests(count: int, longest: int, vocabulary: int, seed: int = 0) -> list[Request]:
    """Prompts of random tokens; lengths from one token to ``longest``, which the first asks for."""
    source = random.Random(seed)
    lengths = [longest] + [max(1, round(longest * source.random() ** 2)) for _ in range(count - 1)]
    return [Request([source.randrange(vocabulary) for _ in range(source.randint(1, 48))], tokens) for tokens in lengths]


def ask(engine: Server, asked: Sequence[Request], batch: int) -> list[dict[str, Any]]:
    """Answers, ``batch`` at a time."""
    found: list[dict[str, Any]] = []
    for first in range(0, len(asked), batch):
        part = asked[first : first + batch]
        sampling = [{"temperature": 0, "max_new_tokens": one.tokens, "ignore_eos": True} for one in part]
        more = {"return_logprob": True, "top_logprobs_num": 2}
        found += engine.generate([one.prompt for one in part], sampling, **more)
    return found


def run(
    model: Path, count: int, longest: int, batches: Sequence[int], dtypes: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Every case: its outcome as JSON, with ``ok``."""
    asked = requests(count, longest, server.vocabulary(model))
    found = {}
    for dtype in dtypes:
        with server.running(model, False, "--dtype", dtype) as stock:
            wanted = {batch: ask(stock, asked, batch) for batch in batches}
        with server.running(model, True, "--dtype", dtype) as engine:
            for batch, answers in wanted.items():
                engine.speculation("on", GAMMA)
                found[f"{dtype}, batch {batch}"] = _case(engine, asked, batch, answers, dtype)
            batch = max(batches)
            with server.switching(engine):
                found[f"{dtype}, batch {batch}, {SWITCHED}"] = _case(engine, asked, batch, wanted[batch], dtype)
    return {name: {**asdict(outcome), "ok": outcome.ok} for name, outcome in found.items()}


def _case(
    engine: Server, asked: Sequence[Request], batch: int, wanted: Sequence[dict[str, Any]], dtype: str
) -> Outcome:
    before = engine.report()
    answers = ask(engine, asked, batch)
    after = engine.report()
    outcome = Outcome()
    cycles = after["request_cycles"] - before["request_cycles"]
    if cycles:
        outcome.tau = round(1 + (after["accepted"] - before["accepted"]) / cycles, 3)
    for number, (one, other, request) in enumerate(zip(wanted, answers, asked, strict=True)):
        outcome.tokens += request.tokens
        told = compare(one, other, request.tokens, TIE[dtype], NEAR[dtype])
        if told is None:
            outcome.equal += 1
        elif told == "tie":
            outcome.ties += 1
        else:
            outcome.differ += 1
            outcome.examples = [*outcome.examples, f"prompt {number}: {told}"][:5]
    return outcome


def compare(wanted: dict[str, Any], answer: dict[str, Any], tokens: int, tie: float, near: float) -> str | None:
    """None where an answer is the stock server's, ``tie`` where it differs first at a tie of two tokens, else how.

    A token's log probability is checked as far as the tokens are equal.
    """
    ids, logprobs = answer["output_ids"], answer["meta_info"]["output_token_logprobs"]
    if not len(ids) == len(logprobs) == answer["meta_info"]["completion_tokens"] == tokens:
        return f"{len(ids)} tokens and {len(logprobs)} log probabilities; {tokens} were asked for"
    for place, token in enumerate(ids):
        right, top = wanted["output_ids"][place], wanted["meta_info"]["output_top_logprobs"][place]
        value = wanted["meta_info"]["output_token_logprobs"][place][0]
        if token != right:
            others = [logprob for logprob, other, _ in top if other == token]
            if others and value - others[0] < tie:
                return "tie"
            behind = f"{value - others[0]:.4f} behind" if others else "not among the first two"
            return f"token {place} is {token}, not {right}, and {behind}"
        if logprobs[place][1] != token or abs(logprobs[place][0] - value) > near:
            return f"log probability of token {place} is {logprobs[place][0]:.5f}, not {value:.5f}"
    return None
