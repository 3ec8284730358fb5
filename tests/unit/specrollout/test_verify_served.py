"""The checks of running servers, on made-up answers: what they pass and what they find."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from april.errors import AprilError, UsageError
from april.launch.verify import greedy, leaks, main, sampled

NEXT = [[0.5, 0.3, 0.2, 0.0], [0.1, 0.1, 0.1, 0.7], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 1.0, 0.0]]
"""Probabilities of the token after each."""
VOCABULARY = 4


class MarkovEngine:
    """Answers as a server whose policy is a table; ``wrong``: with speculation it never says token 1."""

    def __init__(self, wrong: bool = False, works: bool = True) -> None:
        self.mode, self.cycles, self.wrong, self.works = "auto", 0, wrong, works
        self.source = random.Random(0)

    def speculation(self, mode: str, gamma: int | None = None) -> None:
        self.mode = mode

    def report(self) -> dict[str, Any]:
        return {"cycles": self.cycles}

    def generate(self, prompts: Any, sampling: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        if self.mode == "on" and self.works:
            self.cycles += 1
        return [self._answer(list(prompt), sampling, more.get("token_ids_logprob")) for prompt in prompts]

    def _answer(self, context: list[int], sampling: dict[str, Any], asked: list[int] | None) -> dict[str, Any]:
        found = []
        logprobs = [math.log(p) if p else -1e30 for p in NEXT[context[-1] % VOCABULARY]]
        for _ in range(sampling["max_new_tokens"]):
            weights = list(NEXT[context[-1] % VOCABULARY])
            if self.wrong and self.mode == "on":
                weights[1] = 0.0
            found += self.source.choices(range(VOCABULARY), weights)
            context = [*context, found[-1]]
        meta = {"output_token_ids_logprobs": [[(logprobs[token], token, None) for token in asked or []]]}
        return {"output_ids": found, "meta_info": meta}


PLAIN = sampled.Setting(2, top_k=VOCABULARY)


def test_the_law_of_responses_is_asked_for() -> None:
    law = sampled.law(MarkovEngine(), PLAIN, VOCABULARY)  # type: ignore[arg-type]
    assert sum(law.values()) == pytest.approx(1)
    # The prompt ends with 7, whose row is that of token 3.
    assert law[2, 0, 1] == pytest.approx(1.0 * 0.25 * 0.3)
    assert set(law) == {(2, a, b) for a in range(4) for b in range(4) if NEXT[a][b]}


def test_responses_of_another_law_are_found() -> None:
    for wrong, low, high in ((False, 1e-3, 1.0), (True, 0.0, 1e-9)):
        (value,) = sampled.p_values(MarkovEngine(wrong), VOCABULARY, 2000, [PLAIN]).values()  # type: ignore[arg-type]
        assert low <= value <= high


def test_responses_without_a_cycle_show_nothing() -> None:
    with pytest.raises(AprilError, match="no cycle was run"):
        sampled.p_values(MarkovEngine(works=False), VOCABULARY, 100, [PLAIN])  # type: ignore[arg-type]


def answer(*tokens: tuple[int, float], second: tuple[int, float] = (9, -9.0), **meta: Any) -> dict[str, Any]:
    """An answer of (token, log probability) pairs, with the same second choice everywhere."""
    logprobs = [[logprob, token, None] for token, logprob in tokens]
    told = {
        "output_token_logprobs": logprobs,
        "output_top_logprobs": [[one, [second[1], second[0], None]] for one in logprobs],
        "completion_tokens": len(tokens),
        "finish_reason": {"type": "length"},
    }
    return {"output_ids": [token for token, _ in tokens], "meta_info": told | meta}


WANTED = answer((1, -0.5), (2, -0.7), second=(3, -0.8))


@pytest.mark.parametrize(
    ("given", "tie", "told"),
    [
        (answer((1, -0.5), (2, -0.7)), 0.0, None),
        (answer((1, -0.5), (3, -0.79)), 0.15, "tie"),
        (answer((1, -0.5), (3, -0.79)), 0.0, "token 1 is 3, not 2, and 0.1000 behind"),
        (answer((1, -0.5), (4, -0.7)), 0.15, "token 1 is 4, not 2, and not among the first 2"),
        (answer((1, -0.5), (2, -0.9)), 0.15, "log probability of token 1 is -0.90000, not -0.70000"),
        (answer((1, -0.5)), 0.15, "1 tokens and 1 log probabilities; 2 are right"),
    ],
)
def test_first_differences(given: dict[str, Any], tie: float, told: str | None) -> None:
    assert greedy.compare(WANTED, given, tie, 0.1) == told


def test_greedy_requests_ask_for_the_longest_once() -> None:
    asked = greedy.requests(200, 512, 32)
    assert asked[0].tokens == 512
    assert min(one.tokens for one in asked) < 4
    assert all(0 <= token < 32 for one in asked for token in one.prompt)


def test_a_stop_near_the_limit() -> None:
    free = answer((5, -0.1), (6, -0.2), (5, -0.3), (7, -0.4), (6, -0.5))
    asked = greedy.stopped(greedy.Request([1], 5), free, {9})
    assert asked == greedy.Request([1], 7, stop=7)
    assert asked.sampling == {"temperature": 0, "max_new_tokens": 7, "stop_token_ids": [7]}
    assert greedy.stopped(greedy.Request([1], 5), free, {6}).stop == 6
    right = greedy.cut(free, asked)
    assert right["output_ids"] == [5, 6, 5, 7]
    assert greedy.compare(right, answer((5, -0.1), (6, -0.2), (5, -0.3), (7, -0.4)), 0.0, 0.1) is None
    assert greedy.compare(right, free, 0.0, 0.1) == "5 tokens and 5 log probabilities; 4 are right"


def request(**sampling: Any) -> dict[str, Any]:
    """A request for at most two tokens."""
    return {
        "rid": "one",
        "sampling_params": {"max_new_tokens": 2, "ignore_eos": False} | sampling,
        "return_logprob": True,
    }


@pytest.mark.parametrize(
    ("asked", "given", "told"),
    [
        (request(), answer((1, 0.0), (2, 0.0)), None),
        (request(max_new_tokens=1), answer((1, 0.0), (2, 0.0)), "2 tokens of 1"),
        (request(max_new_tokens=3), answer((1, 0.0), (2, 0.0)), "ended by length after 2"),
        (request(stop_token_ids=[1]), answer((1, 0.0), (2, 0.0)), "tokens after a stop token"),
        (request(stop_token_ids=[1], ignore_eos=True), answer((1, 0.0), (2, 0.0)), None),
        (request(stop_token_ids=[2]), answer((1, 0.0), (2, 0.0), finish_reason={"type": "abort"}), "and no stop"),
        (request(), answer((1, 0.0), (2, 0.0), completion_tokens=3), "2 tokens, 3 counted"),
        (request(), answer((1, 0.0), (2, 0.0), output_token_logprobs=[[0.0, 1, None]]), "log probabilities of other"),
    ],
)
def test_answers_that_are_not_whole(asked: dict[str, Any], given: dict[str, Any], told: str | None) -> None:
    found = leaks.check(asked, given)
    assert found is None if told is None else found is not None and told in found


RIGHT: dict[str, Any] = {
    "sampler_p_values": {"plain": 0.3},
    "seeded_faults_caught": {"bonus from q": True},
    "impossible_accepted": False,
    "greedy_equal": True,
    "greedy_cases": {"float32, batch 1": {"equal": 3, "ties": 0, "differ": 0, "examples": []}},
    "kv_leak_tokens": 0,
    "mixed_requests": {"prefix cache": {"cycles": 4, "not_whole": 0, "examples": []}},
}


@pytest.mark.parametrize(
    ("changed", "ok"),
    [
        ({}, True),
        ({"sampler_p_values": {"plain": 1e-9}}, False),
        ({"seeded_faults_caught": {"bonus from q": False}}, False),
        ({"impossible_accepted": True}, False),
        ({"greedy_equal": False}, False),
        ({"kv_leak_tokens": 3}, False),
        ({"mixed_requests": {"prefix cache": {"cycles": 0, "not_whole": 0, "examples": []}}}, False),
        ({"mixed_requests": {"prefix cache": {"cycles": 4, "not_whole": 1, "examples": ["one"]}}}, False),
    ],
)
def test_the_verdict(changed: dict[str, Any], ok: bool) -> None:
    found = RIGHT | changed
    assert main.verdict(found) is ok
    assert main.text(found | {"ok": ok}).endswith("ok" if ok else "NOT as it must be")


def test_the_offline_part_may_stand_alone() -> None:
    assert main.verdict({name: RIGHT[name] for name in list(RIGHT)[:3]})


def test_a_model_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--model .*: use tiny or smollm2, or a folder with a config\.json"):
        main.run(["--model", str(tmp_path)])


def test_help_is_quick() -> None:
    """No torch is imported for it."""
    code = "import sys; from april.launch.cli import main; main(['verify-sd', '--help'])"
    told = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode == 0
    assert "--offline-only" in told.stdout
    assert " torch\n" not in told.stderr


def test_json_of_the_offline_part(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(main, "QUICK", main.Effort(20_000, (1,)))
    monkeypatch.setattr("april.launch.verify.faults.FAULTS", {})
    assert main.run(["--quick", "--offline-only", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert len(found["sampler_p_values"]) == 26
    assert set(found["seeded_faults_caught"]) == {"accepted where p = 0"}
