"""Starts one real server on a CPU, and asks it: generation, and speculation forced on or off while it runs."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.errors import AprilError
from april.launch.child import end_with_parent
from specrollout.settings import ALGORITHM, VARIABLE, Settings

READY_S = 300.0
ANSWER_S = 600.0
LOG_TAIL = 3000
LOWEST_PORT, SECOND = 11_000, 10_000
FLAGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--host", "127.0.0.1", "--random-seed", "0"),
    *("--disable-cuda-graph", "--skip-server-warmup", "--skip-tokenizer-init", "--log-level", "warning"),
    "--sleep-on-idle",  # else a server that waits takes a whole core, and another one computes beside it
)
ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "APRIL_DEVICE": "cpu",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """A running server."""

    url: str
    pid: int

    def post(self, path: str, body: Any = None) -> Any:
        """The answer of a request. Raises AprilError where the server refuses or is gone."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise AprilError(
                f"{self.url}/{path}: {error.code} {error.read()[:300].decode(errors='replace')}"
            ) from error
        except OSError as error:
            raise AprilError(f"{self.url}/{path}: {error}") from error
        try:
            return json.loads(text)
        except ValueError:
            return text.decode(errors="replace")

    def generate(self, prompt: Sequence[int], tokens: int, temperature: float = 1.0, **options: Any) -> dict[str, Any]:
        """One response of exactly so many tokens; ``sampling`` in the options are more sampling parameters."""
        sampling = {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True}
        sampling.update(options.pop("sampling", {}))
        answer: dict[str, Any] = self.post(
            "generate", {"input_ids": list(prompt), "sampling_params": sampling, **options}
        )
        return answer

    def generate_all(
        self, prompts: Sequence[Sequence[int]], tokens: int, temperature: float = 1.0, **options: Any
    ) -> list[dict[str, Any]]:
        """All at once; responses in the order of the prompts."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            tasks = [pool.submit(self.generate, prompt, tokens, temperature, **dict(options)) for prompt in prompts]
            return [task.result() for task in tasks]

    def flush(self) -> None:
        """Forget every prefix; waits until the server is idle. Raises AprilError where it does not become so."""
        self.post("flush_cache?timeout=30", {})

    def force(self, **state: Any) -> None:
        """Set ``mode`` (auto, on, off), ``gamma`` (a number or auto), ``drafter``, ``record``.

        Raises:
            AprilError: where the server refuses it; its log tells why.
        """
        if self.post("set_internal_state", {"server_args": {"specrollout": state}}) != [True]:
            raise AprilError(f"the server refuses {state}: its log tells why")

    def speculation(self) -> dict[str, Any]:
        """The report of its speculation."""
        state: dict[str, Any] = self.post("server_info")["internal_states"][0]["specrollout"]
        return state


@contextlib.contextmanager
def running(
    model: Path,
    *flags: str,
    speculation: Settings | None = None,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Engine]:
    """A server, until the body ends.

    Raises:
        AprilError: with the end of its log where it does not come up, or the body fails with one.
    """
    port = free_port()
    command = [sys.executable, "-m", "april.launch.engine.serve", "--model-path", str(model), *FLAGS, *flags]
    if speculation is not None:
        command += ["--speculative-algorithm", ALGORITHM]
    settings = {
        **os.environ,
        **ENVIRONMENT,
        "OMP_NUM_THREADS": str(threads or os.cpu_count() or 1),
        VARIABLE: "" if speculation is None else speculation.to_json(),
        **(environment or {}),
    }
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=log,
            stderr=log,
            env=settings,
            start_new_session=True,
            # Its own processes end with it.
            preexec_fn=functools.partial(end_with_parent, signal.SIGKILL),
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait(process, url)
            yield Engine(url, process.pid)
        except AprilError as error:
            log.seek(0)
            raise AprilError(f"{error}; the server's log ends: {log.read()[-LOG_TAIL:]}") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    """A port whose second one, :data:`SECOND` above it, is free too: SGLang takes both.

    Both are below those that the system gives to whoever asks for any: such a one may be taken by somebody's connection
    before the server, which imports for seconds, binds it.
    """
    while True:
        port = random.randrange(LOWEST_PORT, LOWEST_PORT + SECOND)
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + SECOND))
            return port


def wait(process: subprocess.Popen[bytes], url: str) -> None:
    """Until the server answers. Raises AprilError where it ends, or takes longer than ``READY_S``."""
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=30).close()
            return
        except OSError:
            time.sleep(0.3)
    ended = process.poll()
    late = f"the server does not come up within {READY_S:.0f} s"
    raise AprilError(late if ended is None else f"the server ended with code {ended}")
