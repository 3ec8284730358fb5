"""Pause, weight update and continue on SGLang's real server, with requests left in it. Cases 14, 16, 27, 28 and 29."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from april.launch.engine.server import free_port, wait
from april.launch.memory import server as measured

pytestmark = [
    *(pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(600)),
    pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed"),
]

KV_TOKENS, LENGTH, REQUESTS, PROMPT = 12_000, 500, 6, 20
AFTER = 40
"""So many tokens after an update are compared: later ones could differ by rounding."""
FLAGS = [
    *("--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", str(KV_TOKENS)),
    *("--host", "127.0.0.1", "--disable-cuda-graph", "--skip-server-warmup", "--dtype", "float32"),
    *("--max-running-requests", "16", "--random-seed", "0"),
]


@dataclass
class Engine:
    """The server, with what the tests ask of it."""

    server: measured.Server
    policies: list[Path]
    pool: ThreadPoolExecutor
    versions: Iterator[int]

    def start(self, prompts: list[list[int]], tokens: int = LENGTH) -> list[Future[Any]]:
        """Greedy requests, all of them generating when this returns."""
        futures = [self.pool.submit(self.generate, prompt, tokens) for prompt in prompts]
        while self.load()["num_running_reqs"] < len(prompts):
            time.sleep(0.01)
        time.sleep(0.15)
        return futures

    def generate(self, prompt: list[int], tokens: int) -> Any:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        return self.server.post("generate", input_ids=prompt, sampling_params=sampling, return_logprob=True)

    def update(self, policy: int) -> str:
        """New weights by the way of the hosts: flushed first, then loaded, which flushes again."""
        version = str(next(self.versions))
        self.server.post("flush_cache")
        answer = self.server.post(
            "update_weights_from_disk", model_path=str(self.policies[policy]), weight_version=version
        )
        assert answer["success"], answer
        return version

    def load(self) -> dict[str, Any]:
        loads: list[dict[str, Any]] = self.get("v1/loads?include=core")["loads"]
        return loads[0]

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = self.get("server_info")["internal_states"][0]["april_pause"]
        return report

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.server.url}/{path}", timeout=60) as answer:
            return json.loads(answer.read())

    def at_baseline(self) -> None:
        """Nothing runs, and no KV is in use once the prefixes that nobody needs are dropped."""
        self.server.post("flush_cache?timeout=30")
        load = self.load()
        assert (load["num_running_reqs"], load["num_waiting_reqs"], load["num_used_tokens"]) == (0, 0, 0)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    from april.launch.quickstart import libraries, tiny

    libraries.prepare()
    import torch

    folder = tmp_path_factory.mktemp("pause")
    policies = [folder / "policy-0", folder / "policy-1"]
    for seed, policy in enumerate(policies):
        torch.manual_seed(seed)
        tiny.save(tiny.build(tiny.TinyRecipe()), tiny.TinyRecipe(), 0.0, policy)
    run = {"APRIL_HOST": "miles", "APRIL_DEVICE": "cpu", "APRIL_INTERRUPT": "retract", "APRIL_RUN_DIR": str(folder)}
    port = free_port()
    command = [sys.executable, "-m", "april.launch.memory.serve", "--model-path", str(policies[0]), *FLAGS]
    with (folder / "log").open("w") as log, ThreadPoolExecutor(16) as pool:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=log,
            stderr=log,
            env={**os.environ, **measured.SETTINGS, **run},
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait(process, url)
            yield Engine(measured.Server(url, measured._scheduler(process.pid)), policies, pool, itertools.count(1))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(autouse=True)
def _first_policy(engine: Engine) -> None:
    # An answer can come before the server is idle.
    engine.server.post("flush_cache?timeout=30")
    engine.update(0)


def prompts() -> list[list[int]]:
    """They share no prefix, so that a cached token would be one of older weights."""
    return [[2 + (number + place * (number + 1)) % 29 for place in range(PROMPT)] for number in range(REQUESTS)]


def pieces(answer: Any) -> list[tuple[str, int]]:
    """The versions of an answer's tokens, in runs."""
    return [(version, len(list(run))) for version, run in itertools.groupby(answer["meta_info"]["token_versions"])]


def logprobs(answer: Any) -> list[float]:
    return [pair[0] for pair in answer["meta_info"]["output_token_logprobs"]]


def updated_in_flight(engine: Engine, mode: str) -> tuple[list[Any], str, str]:
    """Answers of requests that outlived an update, with the version before and after it."""
    before = engine.report()["version"]
    futures = engine.start(prompts())
    engine.server.post("pause_generation", mode=mode)
    after = engine.update(1)
    assert not any(future.done() for future in futures), "no update ends a request"
    engine.server.post("continue_generation")
    answers = [future.result() for future in futures]
    for answer in answers:
        assert answer["meta_info"]["finish_reason"]["type"] == "length"
        assert len(answer["output_ids"]) == len(logprobs(answer)) == LENGTH
        assert [version for version, _ in pieces(answer)] == [before, after]
        assert answer["meta_info"]["weight_version"] == after
    return answers, before, after


def test_retracted_requests_go_on_under_the_new_weights_as_if_they_were_new(engine: Engine) -> None:
    answers, *_ = updated_in_flight(engine, "retract")
    report = engine.report()
    assert (report["kept_requests"], report["stale_kv_tokens"]) == (REQUESTS, 0)
    engine.at_baseline()
    for prompt, answer in zip(prompts(), answers, strict=True):
        cut = pieces(answer)[0][1]
        fresh = engine.generate([*prompt, *answer["output_ids"][:cut]], AFTER)
        assert fresh["meta_info"]["cached_tokens"] == answer["meta_info"]["cached_tokens"] == 0
        assert fresh["output_ids"] == answer["output_ids"][cut : cut + AFTER]
        assert logprobs(fresh) == pytest.approx(logprobs(answer)[cut : cut + AFTER], abs=1e-4)


def test_the_tokens_before_the_update_are_those_of_the_old_weights(engine: Engine) -> None:
    answers, *_ = updated_in_flight(engine, "retract")
    engine.at_baseline()
    engine.update(0)
    for prompt, answer in zip(prompts(), answers, strict=True):
        cut = pieces(answer)[0][1]
        old = engine.generate(prompt, min(cut, AFTER))
        assert old["output_ids"] == answer["output_ids"][: min(cut, AFTER)]


def test_in_place_the_old_keys_and_values_stay_and_are_counted(engine: Engine) -> None:
    engine.generate([9] * 50, 4)
    answers, *_ = updated_in_flight(engine, "in_place")
    # The last token of a request has no keys yet; what nobody needs (the request before) is dropped.
    stale = sum(PROMPT + pieces(answer)[0][1] - 1 for answer in answers)
    assert engine.report()["stale_kv_tokens"] == stale
    engine.at_baseline()
    same = 0
    for prompt, answer in zip(prompts(), answers, strict=True):
        cut = pieces(answer)[0][1]
        old = engine.generate([*prompt, *answer["output_ids"][:cut]], 1)
        same += logprobs(old)[0] == pytest.approx(logprobs(answer)[cut], abs=1e-4)
    assert same < REQUESTS, "with stale keys the new weights say something else"


def test_several_updates_and_a_pause_without_one(engine: Engine) -> None:
    first = engine.report()["version"]
    futures = engine.start(prompts()[:2])
    seen = [first]
    for mode, policy in (("retract", 1), ("in_place", 0), ("retract", None)):
        engine.server.post("pause_generation", mode=mode)
        if policy is not None:
            seen.append(engine.update(policy))
        engine.server.post("continue_generation")
        time.sleep(0.1)
    for future in futures:
        assert [version for version, _ in pieces(future.result())] == seen
    engine.at_baseline()


def test_a_retracted_request_is_aborted_with_all_its_tokens(engine: Engine) -> None:
    """Case 14: SGLang's own abort of a queued request returns what it has sent before, and loses the rest."""
    futures = engine.start(prompts())
    engine.server.post("pause_generation", mode="retract")
    engine.server.post("abort_request", abort_all=True)
    engine.server.post("continue_generation")
    for prompt, future in zip(prompts(), futures, strict=True):
        answer = future.result()
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        tokens = answer["output_ids"]
        assert len(tokens) == len(logprobs(answer)) == len(answer["meta_info"]["token_versions"]) > 1
        assert tokens[:AFTER] == engine.generate(prompt, AFTER)["output_ids"][: len(tokens)]
    engine.at_baseline()


def test_a_paused_server_is_healthy(engine: Engine) -> None:
    engine.server.post("pause_generation", mode="retract")
    started = time.monotonic()
    with urllib.request.urlopen(f"{engine.server.url}/health_generate", timeout=60) as answer:
        assert answer.status == 200
    assert time.monotonic() - started < 10, "SGLang's own check waits 20 s and then fails"
    engine.server.post("continue_generation")
