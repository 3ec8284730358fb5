"""Speculation on SGLang's real server: what it says is what it says without, whatever comes between."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from april.launch.engine.server import Engine, running
from april.launch.memory.server import policy as untrained
from specrollout.settings import Settings

pytestmark = [
    *(pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)),
    pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed"),
]

FLAGS = ("--dtype", "float32", "--max-total-tokens", "2000", "--chunked-prefill-size", "64")
"""Prompts in several chunks, and a cache too small for all requests at once: some are retracted."""
SETTINGS = Settings(toggle="off", gamma=4, longest=6)
LAUNCHES = [
    pytest.param((), id="overlap"),
    pytest.param(("--disable-overlap-schedule", "--disable-radix-cache"), id="sync"),
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("policy"), hidden=128, ffn=256)


@pytest.fixture(scope="module", params=LAUNCHES)
def engine(policy: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with running(policy, *FLAGS, *request.param, speculation=SETTINGS, threads=1) as started:
        yield started


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(2, 30) for _ in range(draw.randrange(3, 150))] for _ in range(count)]


def answers(engine: Engine, count: int = 12, **options: Any) -> list[dict[str, Any]]:
    """Greedy, with log probabilities, of different lengths."""
    asked = [(prompt, 5 + 7 * number) for number, prompt in enumerate(prompts(count))]
    with ThreadPoolExecutor(count) as pool:
        tasks = [
            pool.submit(engine.generate, prompt, tokens, 0.0, return_logprob=True, top_logprobs_num=2, **dict(options))
            for prompt, tokens in asked
        ]
        return [task.result() for task in tasks]


def logprobs(answer: dict[str, Any]) -> list[float]:
    meta = answer["meta_info"]
    top = [value for place in meta["output_top_logprobs"] for value, *_ in place]
    return [value for value, *_ in meta["output_token_logprobs"]] + top


def test_tokens_and_log_probabilities_are_those_of_plain_decoding(engine: Engine) -> None:
    engine.force(mode="off")
    plain = answers(engine)
    for gamma in (1, 6):
        engine.force(mode="on", gamma=gamma)
        engine.flush()
        speculated = answers(engine)
        assert [a["output_ids"] for a in speculated] == [a["output_ids"] for a in plain]
        for one, other in zip(speculated, plain, strict=True):
            assert logprobs(one) == pytest.approx(logprobs(other), abs=1e-4)
        counts = speculated[-1]["meta_info"]
        assert counts["spec_num_proposed_drafts"] == gamma * counts["spec_verify_ct"]
        assert counts["spec_num_correct_drafts"] + counts["spec_verify_ct"] >= counts["completion_tokens"] - 1


def test_a_stop_token_inside_an_accepted_run_ends_the_response(engine: Engine) -> None:
    engine.force(mode="off")
    prompt = prompts(1, seed=3)[0]
    plain = engine.generate(prompt, 40, 0.0)["output_ids"]
    stop = plain[17]
    sampling = {"stop_token_ids": [stop], "ignore_eos": False}
    expected = engine.generate(prompt, 40, 0.0, sampling=sampling)
    engine.force(mode="on", gamma=6)
    got = engine.generate(prompt, 40, 0.0, sampling=sampling)
    assert got["output_ids"] == expected["output_ids"] == plain[: plain.index(stop) + 1]
    assert got["meta_info"]["finish_reason"] == expected["meta_info"]["finish_reason"]


def test_what_cannot_be_verified_is_decoded_plainly_and_counted(engine: Engine) -> None:
    engine.force(mode="on", gamma=4)
    before = engine.speculation()
    answer = engine.generate(prompts(1)[0], 12, 1.0, sampling={"frequency_penalty": 0.5})
    after = engine.speculation()
    assert len(answer["output_ids"]) == 12
    assert after["fallbacks"]["penalty"] > before["fallbacks"].get("penalty", 0)
    assert after["cycles"] == before["cycles"]
    assert "spec_accept_rate" not in answer["meta_info"]


def test_new_weights_make_a_new_drafter_once_and_the_same_answers_as_plain(
    engine: Engine, policy: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(policy, tmp_path / "other"))
    _shift(other / "model.safetensors")
    engine.force(mode="on", gamma=4)
    engine.generate(prompts(1)[0], 8, 0.0)
    before = engine.speculation()["drafter"]
    engine.flush()
    assert engine.post("update_weights_from_disk", {"model_path": str(other)})["success"]
    assert engine.speculation()["drafter"]["refreshes"] == before["refreshes"]
    speculated = answers(engine, 4)
    after = engine.speculation()["drafter"]
    assert after["refreshes"] == before["refreshes"] + 1
    assert after["drafter_checksum"] != before["drafter_checksum"]
    assert after["alarm"] is None
    engine.force(mode="off")
    engine.flush()
    assert [a["output_ids"] for a in answers(engine, 4)] == [a["output_ids"] for a in speculated]
    engine.flush()
    assert engine.post("update_weights_from_disk", {"model_path": str(policy)})["success"]


def _shift(weights: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(weights)
    save_file({name: tensor * 1.02 for name, tensor in tensors.items()}, weights, metadata={"format": "pt"})


def test_aborts_and_switches_leave_the_others_whole(engine: Engine) -> None:
    with ThreadPoolExecutor(24) as pool:
        tasks = [
            pool.submit(engine.generate, prompt, 60, number % 3 / 2, rid=f"r{number:02d}")
            for number, prompt in enumerate(prompts(24, seed=5))
        ]
        for number in range(0, 24, 2):
            engine.force(mode="on" if number % 4 else "off", gamma=1 + number % 6)
            engine.post("abort_request", {"rid": f"r{number:02d}"})
        results = [task.result() for task in tasks]
    ends = [answer["meta_info"]["finish_reason"]["type"] for answer in results]
    assert ends[1::2] == ["length"] * 12
    assert all(len(answer["output_ids"]) == 60 for answer in results[1::2])
    engine.flush()  # refused while anything is in use


def test_a_wrong_request_changes_nothing(engine: Engine) -> None:
    engine.force(mode="on", gamma=3)
    for wrong in ({"gamma": 7}, {"mode": "yes"}, {"drafter": "w2"}, {"length": 3}):
        body = {"server_args": {"specrollout": wrong}}
        assert engine.post("set_internal_state", body) == [False]
    assert engine.speculation()["forced"] == "on"
