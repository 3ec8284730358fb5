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
TOP = 5
"""Tokens that may tie."""
NEAR = {"float32": 1e-3, "bfloat16": 0.5}
"""How far a log probability may be from the stock server's."""
SWITCHED = "switched"
"""Name of the case in which speculation goes on and off and drafts change their length."""
STOPPED = "stopped near the limit"
"""Name of the case in which a stop token and the limit of tokens may fall into one accepted run."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how many tokens are wanted; ``stop`` ends it earlier."""

    prompt: list[int]
    tokens: int
    stop: int | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """As the server is asked."""
        plain = {"temperature": 0, "max_new_tokens": self.tokens}
        return {**plain, "ignore_eos": True} if self.stop is None else {**plain, "stop_token_ids": [self.stop]}


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
        sampling = [one.sampling for one in part]
        more = {"return_logprob": True, "top_logprobs_num": TOP}
        found += engine.generate([one.prompt for one in part], sampling, **more)
    return found


def run(
    model: Path, count: int, longest: int, batches: Sequence[int], dtypes: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Every case: its outcome as JSON, with ``ok``."""
    asked = requests(count, longest, server.vocabulary(model))
    ends, found = server.end_tokens(model), {}
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
            if dtype == "float32":
                engine.speculation("on", server.LONGEST)
                stops = [stopped(one, answer, ends) for one, answer in zip(asked, wanted[batch], strict=True)]
                short = [cut(answer, one) for one, answer in zip(stops, wanted[batch], strict=True)]
                found[f"{dtype}, batch {batch}, {STOPPED}"] = _case(engine, stops, batch, short, dtype)
    return {name: {**asdict(outcome), "ok": outcome.ok} for name, outcome in found.items()}


def stopped(request: Request, answer: dict[str, Any], ends: set[int]) -> Request:
    """The same prompt, ended by the token that comes last for the first time; the limit is up to three tokens later.

    What comes after one of ``ends``, which always end a response, does not count.
    """
    ids = answer["output_ids"]
    ids = ids[: 1 + next((place for place, token in enumerate(ids) if token in ends), len(ids))]
    place = max(ids.index(token) for token in set(ids))
    return Request(request.prompt, place + 1 + place % 4, ids[place])


def cut(answer: dict[str, Any], request: Request) -> dict[str, Any]:
    """What a right server answers to :func:`stopped`: all up to the stop token."""
    length = answer["output_ids"].index(request.stop) + 1
    meta = answer["meta_info"]
    parts = {name: meta[name][:length] for name in ("output_token_logprobs", "output_top_logprobs")}
    return {"output_ids": answer["output_ids"][:length], "meta_info": {**meta, **parts, "completion_tokens": length}}


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
    for number, (one, other) in enumerate(zip(wanted, answers, strict=True)):
        outcome.tokens += len(one["output_ids"])
        told = compare(one, other, TIE[dtype], NEAR[dtype])
        if told is None:
            outcome.equal += 1
        elif told == "tie":
            outcome.ties += 1
        else:
            outcome.differ += 1
            outcome.examples = [*outcome.examples, f"prompt {number}: {told}"][:5]
    return outcome


def compare(wanted: dict[str, Any], answer: dict[str, Any], tie: float, near: float) -> str | None:
    """None where an answer is the stock server's, ``tie`` where it differs first at a tie of tokens, else how.

    A token's log probability is checked as far as the tokens are equal.
    """
    ids, logprobs = answer["output_ids"], answer["meta_info"]["output_token_logprobs"]
    length = len(wanted["output_ids"])
    if not len(ids) == len(logprobs) == answer["meta_info"]["completion_tokens"] == length:
        return f"{len(ids)} tokens and {len(logprobs)} log probabilities; {length} are right"
    for place, token in enumerate(ids):
        right, top = wanted["output_ids"][place], wanted["meta_info"]["output_top_logprobs"][place]
        value = wanted["meta_info"]["output_token_logprobs"][place][0]
        if token != right:
            others = [logprob for logprob, other, _ in top if other == token]
            if others and value - others[0] < tie:
                return "tie"
            behind = f"{value - others[0]:.4f} behind" if others else f"not among the first {len(top)}"
            return f"token {place} is {token}, not {right}, and {behind}"
        if logprobs[place][1] != token or abs(logprobs[place][0] - value) > near:
            return f"log probability of token {place} is {logprobs[place][0]:.5f}, not {value:.5f}"
    return None
