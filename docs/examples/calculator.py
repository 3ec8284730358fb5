"""A multi-turn generate function that can be resumed: the policy calls a calculator and goes on with its answer.

``--custom-generate-function-path calculator.generate``, with this file on PYTHONPATH. A response ends its turn with
``calc(EXPRESSION)``; the value is appended, with loss mask 0, and the next turn begins.
"""

from __future__ import annotations

import ast
import importlib
import operator
import os
import re
from typing import Any

HOST = os.environ.get("APRIL_HOST", "slime")
TURNS = 4
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def call_of(text: str) -> str | None:
    """The expression that the text ends with a call for."""
    found = re.search(r"calc\(([^()]*)\)\s*$", text)
    return found[1] if found else None


def answer(expression: str) -> str:
    """What the tool says: a number, or that it did not understand."""
    try:
        return str(_value(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError):
        return "error"


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return int(OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError("not a sum")


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """Turns until the response ends, is as long as it may be, or the round does. All state is in ``sample``."""
    rollout = importlib.import_module(f"{HOST}.rollout.sglang_rollout")
    state, status = rollout.GenerateState(args), type(sample.status)
    if not sample.response_length:
        prompt = state.tokenizer.encode(sample.prompt, add_special_tokens=False)
        sample.tokens, sample.loss_mask, sample.rollout_log_probs = list(prompt), [], []
    for _ in range(sample.metadata.get("turns", 0), TURNS):
        left = args.rollout_max_response_len - sample.response_length
        if left <= 0:
            sample.status = status("truncated")
            return sample
        if state.aborted:  # the round is over: no new request
            sample.status = status("aborted")
            return sample
        reason = await _turn(rollout, args, sample, {**sampling_params, "max_new_tokens": left})
        if reason != "stop":  # "abort": it goes on from here in a later round; "length": it is as long as it may be
            sample.status = status("aborted" if reason == "abort" else "truncated")
            return sample
        sample.metadata["turns"] = sample.metadata.get("turns", 0) + 1
        if (expression := call_of(sample.response)) is None:
            break
        _append_answer(state.tokenizer, sample, answer(expression), args.rollout_max_response_len)
    sample.status = status("completed")
    return sample


async def _turn(rollout: Any, args: Any, sample: Any, sampling_params: dict[str, Any]) -> str:
    """One request with all that the sample has; appends what came and returns why it ended."""
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    payload = {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True}
    output = await rollout.post(url, payload)
    meta = output["meta_info"]
    came = meta.get("output_token_logprobs", [])
    sample.tokens = sample.tokens + [token for _, token, *_ in came]
    sample.rollout_log_probs = sample.rollout_log_probs + [log_prob for log_prob, *_ in came]
    sample.loss_mask = sample.loss_mask + [1] * len(came)
    sample.response_length += len(came)
    sample.response += output["text"]
    sample.weight_versions.append(meta["weight_version"])
    return str(meta["finish_reason"]["type"])


def _append_answer(tokenizer: Any, sample: Any, text: str, longest: int) -> None:
    """The tool's tokens are no actions of the policy: loss mask 0, log probability 0."""
    tokens = tokenizer.encode(text, add_special_tokens=False)[: longest - sample.response_length]
    sample.tokens = sample.tokens + tokens
    sample.rollout_log_probs = sample.rollout_log_probs + [0.0] * len(tokens)
    sample.loss_mask = sample.loss_mask + [0] * len(tokens)
    sample.response_length += len(tokens)
    sample.response += text
