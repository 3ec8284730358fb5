"""Measures release and resume on SGLang's real server on a CPU: resident memory by phase, and what it generates.

``python -m april.launch.memory.server [--picture FILE.png]`` prints one JSON object. The policy is made on the spot,
untrained: what it says does not matter, only that it says it again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from april.errors import AprilError
from april.launch.engine.server import free_port, wait
from april.launch.memory import picture

LOG_TAIL = 3000
ANSWER_S = 120
SAMPLE_S = 0.01
TOKENS = 12_000
PROMPT = [5, 6, 7, 8]
REQUESTS, LENGTH = 16, 600
"""A rollout writes four fifths of the cache."""
CYCLES = 50
FLYING = 150
"""Tokens that a request of an aborted round asks for: more than it gets."""
FLAGS = [
    *("--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", str(TOKENS)),
    *("--host", "127.0.0.1", "--enable-memory-saver", "--disable-cuda-graph", "--skip-server-warmup"),
    *("--disable-overlap-schedule", "--max-running-requests", "64"),
    *("--dtype", "float32", "--random-seed", "0"),
]
SETTINGS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


@dataclass(slots=True)
class Trace:
    """Resident bytes of the scheduler over time, and when each phase began; seconds from the first sample."""

    samples: list[tuple[float, int]] = field(default_factory=list)
    phases: list[tuple[float, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    scheduler: psutil.Process

    def post(self, path: str, **body: Any) -> Any:
        """The answer of a request; raises AprilError where the server refuses."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{path}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                text = answer.read()
                return json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text
        except OSError as error:
            raise AprilError(f"{self.url}/{path}: {error}") from error

    def generate(self, tokens: int = 24, prompt: Sequence[int] = PROMPT) -> list[int]:
        """Greedy token ids."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        ids: list[int] = self.post("generate", input_ids=list(prompt), sampling_params=sampling)["output_ids"]
        return ids

    def roll_out(self) -> list[list[int]]:
        """Greedy token ids of many prompts that share no prefix."""
        prompts = [[2 + (number + place * (number + 1)) % 29 for place in range(LENGTH)] for number in range(REQUESTS)]
        with ThreadPoolExecutor(REQUESTS) as pool:
            return list(pool.map(lambda prompt: self.generate(8, prompt), prompts))

    def load(self) -> dict[str, Any]:
        """Requests, and tokens of the cache that they hold (what only the prefix cache keeps is free for others)."""
        with urllib.request.urlopen(f"{self.url}/v1/loads?include=core", timeout=ANSWER_S) as answer:
            core: dict[str, Any] = json.load(answer)["loads"][0]
        return core

    def release(self) -> None:
        """Releases all; flushed first, as the hosts do, since the server asserts that it is idle, and an answer can
        come before it is."""
        self.post("flush_cache?timeout=30")
        self.post("release_memory_occupation")

    def resident(self) -> int:
        """Bytes of the scheduler."""
        return int(self.scheduler.memory_info().rss)


@contextlib.contextmanager
def running(model: Path, *flags: str) -> Iterator[Server]:
    """The server, until the body ends; raises AprilError with the end of its log where it does not come up."""
    port = free_port()
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "april.launch.memory.serve", "--model-path", str(model), *FLAGS, *flags]
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=log,
            stderr=log,
            env={**os.environ, **SETTINGS},
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait(process, url)
            yield Server(url, _scheduler(process.pid))
        except AprilError as error:
            log.seek(0)
            raise AprilError(f"{error}; the server's log ends: {log.read()[-LOG_TAIL:]}") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _scheduler(server: int) -> psutil.Process:
    for child in psutil.Process(server).children(recursive=True):
        if "sglang::scheduler" in " ".join(child.cmdline()) + child.name():
            return child
    raise AprilError("the server has no scheduler process")


@contextlib.contextmanager
def traced(server: Server) -> Iterator[Trace]:
    """Samples the resident memory while the body runs."""
    trace, ended, started = Trace(), threading.Event(), time.perf_counter()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            trace.samples.append((time.perf_counter() - started, server.resident()))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield trace
    finally:
        ended.set()
        thread.join()


def round_trip(server: Server, model: Path, trace: Trace, pause_s: float = 0.5) -> dict[str, Any]:
    """One round as a host has it; ``pause_s`` before each phase stands for the training."""

    def phase(name: str) -> None:
        time.sleep(pause_s)
        trace.phases.append((trace.samples[-1][0] if trace.samples else 0.0, name))

    phase("rollout")
    before, full = server.roll_out(), server.resident()
    phase("released")
    server.release()
    released = server.resident()
    phase("weights back")
    server.post("resume_memory_occupation", tags=["weights"])
    updated = server.post("update_weights_from_disk", model_path=str(model), flush_cache=False)
    phase("all back, rollout")
    server.post("resume_memory_occupation", tags=["kv_cache", "cuda_graph"])
    after = server.roll_out()
    time.sleep(pause_s)
    return {"full": full, "released": released, "updated": updated["success"], "tokens_equal": before == after}


def abort_round(server: Server) -> dict[str, Any]:
    """A round that ends with requests in flight: what of the cache they held, and when it was free again (s)."""
    idle = server.load()["num_used_tokens"]
    prompts = [[2 + (number + place) % 29 for place in range(LENGTH)] for number in range(REQUESTS)]
    with ThreadPoolExecutor(REQUESTS) as pool:
        flying = [pool.submit(server.generate, FLYING, prompt) for prompt in prompts]
        _until(lambda: server.load()["num_running_reqs"] == REQUESTS, "all requests run")
        held = server.load()["num_used_tokens"]
        started = time.perf_counter()
        server.post("abort_request", abort_all=True)
        _until(lambda: server.load()["num_used_tokens"] <= idle, "the cache of aborted requests is free")
        freed = time.perf_counter() - started
        partials = [each.result() for each in flying]
    return {"idle": idle, "held": held, "freed_after_s": freed, "partials": [len(tokens) for tokens in partials]}


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + ANSWER_S
    while not holds():
        if time.monotonic() > deadline:
            raise AprilError(f"not within {ANSWER_S} s: {what}")
        time.sleep(SAMPLE_S)


def cycles(server: Server, count: int = CYCLES) -> float:
    """The part by which resident memory grows over ``count`` releases and resumes, with the cache written each time."""
    server.generate()
    first = 0
    for cycle in range(count + 1):
        server.release()
        server.post("resume_memory_occupation")
        server.generate(4)
        if cycle == 0:
            first = server.resident()
    return (server.resident() - first) / first


def policy(folder: Path, hidden: int = 512, ffn: int = 1024) -> Path:
    """An untrained policy with a cache that can be seen in resident memory: 16 KiB a token with the default sizes."""
    from april.launch.quickstart import libraries, tiny

    libraries.prepare()
    import torch

    torch.manual_seed(0)
    recipe = tiny.TinyRecipe(hidden=hidden, ffn=ffn, heads=8, kv_heads=8)
    tiny.save(tiny.build(recipe), recipe, 0.0, folder)
    return folder


def expected(model: Path) -> dict[str, int]:
    """Bytes of the regions, by the model's shape (float32): weights, and the KV cache."""
    shape = json.loads((model / "config.json").read_text())
    token = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"] * 4  # keys and values
    return {"weights": (model / "model.safetensors").stat().st_size, "kv_cache": token * TOKENS}


def main(argv: list[str] | None = None) -> int:
    """Prints the figures; draws the picture where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, running(policy(Path(folder))) as server:
        with traced(server) as trace:
            rounds = [round_trip(server, Path(folder), trace, pause_s=1.0) for _ in range(2)]
        aborted = abort_round(server)
        found: dict[str, Any] = {"rounds": rounds, "aborted": aborted, "regions": expected(Path(folder))}
        found["drift_50_cycles"] = cycles(server)
    if given.picture:
        title = "SGLang's scheduler on a CPU: two rounds of release and resume"
        picture.draw({"scheduler": trace.samples}, trace.phases, title, given.picture)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
