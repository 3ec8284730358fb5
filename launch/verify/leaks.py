"""Mixed requests with random aborts while speculation is switched: every answer is whole, and no KV stays in use."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from april.launch.verify import server
from april.launch.verify.server import Server

WORKERS = 24
"""Requests that are under way at once."""
ABORTED = 0.3
PLAIN = 0.01
"""Requests that have their whole batch decoded plainly."""
VARIANTS: dict[str, tuple[str, ...]] = {
    "prefix cache": (),
    "no prefix cache, small pool, small chunks": (
        *("--disable-radix-cache", "--max-total-tokens", "1000", "--chunked-prefill-size", "64"),
        *("--schedule-conservativeness", "0"),
    ),
}
"""Servers that it is tried on; the later of two equal flags counts. The small pool has running requests retracted.

Pages are of one token: SGLang allocates longer ones with a Triton kernel, which a CPU does not have.
"""


def requests(count: int, vocabulary: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Requests of all kinds: sampling, stops, log probabilities, and what is not speculated for."""
    source = random.Random(seed)
    for number in range(count):
        sampling: dict[str, Any] = {
            "temperature": source.choice([0, 0.7, 1.0, 1.5]),
            "max_new_tokens": source.choice([1, 2, 5, 20, 80, 200]),
            "ignore_eos": source.random() < 0.5,
        }
        sampling |= source.choice([{}, {}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 5, "top_p": 0.7}])
        if source.random() < 0.3:
            sampling["stop_token_ids"] = source.sample(range(vocabulary), 3)
        if source.random() < PLAIN:
            sampling |= source.choice(
                [{"frequency_penalty": 0.5}, {"repetition_penalty": 1.2}, {"logit_bias": {"1": -1.0}}]
            )
        yield {
            "rid": f"verify-{seed}-{number}",
            "input_ids": [source.randrange(vocabulary) for _ in range(source.choice([1, 8, 40, 150]))],
            "sampling_params": sampling,
            "return_logprob": source.random() < 0.5,
        }


def run(model: Path, count: int) -> dict[str, Any]:
    """By variant: tokens of KV in use after it less those before, and how requests ended."""
    found: dict[str, Any] = {}
    for name, flags in VARIANTS.items():
        with server.running(model, True, "--dtype", "float32", *flags) as engine:
            found[name] = burden(engine, count, server.vocabulary(model))
    return found


def burden(engine: Server, count: int, vocabulary: int) -> dict[str, Any]:
    """Send ``count`` requests, most of them speculated for."""
    before, source = engine.used_tokens(), random.Random(count)
    engine.speculation("on", 3)
    aborts = [source.uniform(0, 1.0) if source.random() < ABORTED else None for _ in range(count)]
    asked = list(requests(count, vocabulary))
    with server.switching(engine), ThreadPoolExecutor(WORKERS) as pool:
        answers = list(pool.map(_one, [engine] * count, asked, aborts))
    faults = [fault for fault in map(check, asked, answers) if fault is not None]
    report = engine.report()
    return {
        "leaked_tokens": engine.used_tokens() - before,
        "ended": dict(Counter(answer["meta_info"]["finish_reason"]["type"] for answer in answers)),
        "not_whole": len(faults),
        "examples": faults[:3],
        # A request that was aborted in the queue has no such count.
        "retracted": sum(answer["meta_info"].get("num_retractions", 0) for answer in answers),
        "cycles": report["cycles"],
        "fallbacks": report["fallbacks"],
    }


def _one(engine: Server, request: dict[str, Any], abort_s: float | None) -> dict[str, Any]:
    """Send a request, and abort it after so long; its answer."""
    timer = threading.Timer(abort_s or 0.0, engine.ask, ("abort_request", {"rid": request["rid"]}))
    if abort_s is not None:
        timer.start()
    try:
        answer: dict[str, Any] = engine.ask("generate", request)
    finally:
        timer.cancel()
    return answer


def check(request: dict[str, Any], answer: dict[str, Any]) -> str | None:
    """How an answer is not what was asked for; None where it is."""
    sampling, meta, ids = request["sampling_params"], answer["meta_info"], answer["output_ids"]
    reason = meta["finish_reason"]["type"]
    # SGLang ignores them with the end of the sequence.
    stops = set() if sampling["ignore_eos"] else set(sampling.get("stop_token_ids", ()))
    faults = {
        f"{len(ids)} tokens, {meta['completion_tokens']} counted": len(ids) != meta["completion_tokens"],
        f"{len(ids)} tokens of {sampling['max_new_tokens']}": len(ids) > sampling["max_new_tokens"],
        f"ended by length after {len(ids)}": reason == "length" and len(ids) != sampling["max_new_tokens"],
        "tokens after a stop token": bool(stops & set(ids[:-1])),
        # At the last token that was asked for SGLang says length.
        "a stop token at the end, and no stop": bool(stops & set(ids[-1:])) and reason not in ("stop", "length"),
        "log probabilities of other tokens": request["return_logprob"]
        and [token for _, token, _ in meta["output_token_logprobs"]] != ids,
    }
    found = [fault for fault, present in faults.items() if present]
    return f"{request['rid']}, {sampling}: {', '.join(found)}: {ids}, {reason}" if found else None
