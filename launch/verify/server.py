"""A real server, stock or speculating, and what the checks ask of it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.errors import AprilError
from april.launch.engine.server import free_port, wait

ANSWER_S = 600
IDLE_S = 60
LOG_TAIL = 3000
LONGEST = 4
TOKENS = 24_000
FLAGS = [
    *("--device", "cpu", "--attention-backend", "torch_native", "--host", "127.0.0.1"),
    *("--disable-cuda-graph", "--skip-server-warmup", "--max-running-requests", "64", "--sleep-on-idle"),
    *("--max-total-tokens", str(TOKENS), "--random-seed", "0"),
]
SPECULATE = ["--speculative-algorithm", "QUANT_SELF"]
SETTINGS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer to a POST of ``body``, or to a GET. Raises AprilError where the server refuses."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                text = answer.read()
                return json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text
        except OSError as error:
            told = error.read().decode(errors="replace")[:300] if isinstance(error, urllib.error.HTTPError) else ""
            raise AprilError(f"{self.url}/{path}: {error} {told}".rstrip()) from error

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Any, **more: Any) -> list[dict[str, Any]]:
        """Answers to prompts of token ids that are sent together; ``sampling``: one for all, or one each."""
        body = {"input_ids": [list(prompt) for prompt in prompts], "sampling_params": sampling, **more}
        answers: list[dict[str, Any]] = self.ask("generate", body)
        return answers

    def speculation(self, mode: str, gamma: int | None = None) -> None:
        """Force speculation ``on`` or ``off``, or leave it to the toggle: ``auto``."""
        asked = {"server_args": {"specrollout": {"mode": mode, "gamma": gamma}}}
        if self.ask("set_internal_state", asked) != [True]:
            raise AprilError(f"the server does not take specrollout mode {mode}, gamma {gamma}")

    def report(self) -> dict[str, Any]:
        """What speculation did in this server so far. Raises AprilError where it cannot speculate."""
        found: dict[str, Any] = self.ask("server_info")["internal_states"][0].get("specrollout") or {}
        if not found or found.get("refusal"):
            raise AprilError(f"the server does not speculate: {found.get('refusal', 'no report in /server_info')}")
        return found

    def used_tokens(self) -> int:
        """Slots of the KV cache that are held once the server is idle and its prefix cache flushed."""
        deadline = time.monotonic() + IDLE_S
        while True:
            load = self.ask("v1/loads?include=core")["loads"][0]
            if not load["num_running_reqs"] + load["num_waiting_reqs"]:
                break
            if time.monotonic() > deadline:
                raise AprilError(f"{load['num_running_reqs']} requests still run {IDLE_S} s after the last answer")
            time.sleep(0.2)
        self.ask(f"flush_cache?timeout={IDLE_S}", {})
        return int(self.ask("v1/loads?include=core")["loads"][0]["num_used_tokens"])


@contextlib.contextmanager
def running(model: Path, speculate: bool, *flags: str) -> Iterator[Server]:
    """The server, until the body ends; raises AprilError with the end of its log where it does not come up or fails."""
    port = free_port()
    settings = {"SPECROLLOUT": json.dumps({"toggle": "off", "longest": LONGEST})} if speculate else {}
    environment = {name: value for name, value in os.environ.items() if name != "SPECROLLOUT"}
    command = [sys.executable, "-m", "april.launch.engine.serve", "--model-path", str(model), *FLAGS, *flags]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, *(SPECULATE if speculate else []), "--port", str(port)],
            stdout=log,
            stderr=log,
            env={**environment, **SETTINGS, **settings},
            start_new_session=True,
        )
        try:
            wait(process, f"http://127.0.0.1:{port}")
            yield Server(f"http://127.0.0.1:{port}")
        except AprilError as error:
            log.seek(0)
            raise AprilError(f"{error}; the server's log ends: {log.read()[-LOG_TAIL:]}") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def switching(server: Server, seed: int = 0, pause_s: float = 0.1) -> Iterator[None]:
    """While the body runs, speculation goes on and off and drafts change their length, at random steps."""
    ended, source = threading.Event(), random.Random(seed)
    failed: list[AprilError] = []

    def switch() -> None:
        while not ended.wait(source.uniform(0, pause_s)):
            try:
                server.speculation(source.choice(["on", "on", "off"]), source.randint(1, LONGEST))
            except AprilError as error:
                failed.append(error)
                return

    thread = threading.Thread(target=switch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failed:
        raise failed[0]


def vocabulary(model: Path) -> int:
    """Token ids of a model's folder."""
    return int(json.loads((model / "config.json").read_text())["vocab_size"])


def end_tokens(model: Path) -> set[int]:
    """Tokens that end a response, by a model's folder."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if (model / name).is_file():
            ends = json.loads((model / name).read_text()).get("eos_token_id")
            found |= set(ends) if isinstance(ends, list) else {ends} - {None}
    return found
