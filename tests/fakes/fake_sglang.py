"""A small fake of an SGLang server behind a router, as an httpx transport: ticks out tokens, aborts, reports load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

ROUTER = "http://router"
WORKER = "http://worker"


class FakeSglang(httpx.AsyncBaseTransport):
    """Token ``i`` of the sequence is always ``1000 + i``, counted from the start of the prompt: a resumed response
    shows where it went on. ``length(prompt_ids)`` is the response length that ends with "stop". Paused it ticks no
    more; ``written[rid]`` is the weight version of each token of a named request.
    """

    def __init__(self, length: Callable[[list[int]], int], tick: float = 0.001, prompt_tokens: int = 2) -> None:
        self.length = length
        self.tick = tick
        self.prompt_tokens = prompt_tokens
        self.weight_version = "1"
        self.requests: list[dict[str, Any]] = []
        self.aborts = 0
        self.running: set[asyncio.Event] = set()
        self.text = "x"
        self.delay_s: dict[str, float] = {}
        self.unpaused = True
        self.pauses: list[str] = []
        self.stale = 0
        self.named: dict[str, asyncio.Event] = {}
        self.written: dict[str, list[str]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        body = json.loads(request.content) if request.content else {}
        await asyncio.sleep(self.delay_s.get(path, 0))
        if path == "/workers":
            return httpx.Response(200, json={"workers": [{"url": WORKER}]})
        if path == "/model_info":
            return httpx.Response(200, json={"weight_version": self.weight_version})
        if path == "/v1/loads":
            return httpx.Response(200, json={"loads": [{"num_running_reqs": len(self.running), "num_waiting_reqs": 0}]})
        if path in ("/pause_generation", "/continue_generation"):
            self.unpaused = path == "/continue_generation"
            self.pauses.append(body.get("mode", "continue"))
            return httpx.Response(200, json={})
        if path == "/server_info":
            states = [{"april_pause": {"total_stale_kv_tokens": self.stale}}]
            return httpx.Response(200, json={"internal_states": states})
        if path == "/abort_request" and "rid" in body:
            if body["rid"] in self.named:
                self.named[body["rid"]].set()
            return httpx.Response(200, json={})
        if path == "/abort_request":
            assert body == {"abort_all": True}
            self.aborts += 1
            for event in self.running:
                event.set()
            return httpx.Response(200, json={})
        if path == "/generate":
            return httpx.Response(200, json=await self._generate(body))
        return httpx.Response(404)

    async def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(body)
        ids = body["input_ids"]
        budget = body["sampling_params"]["max_new_tokens"]
        assert budget > 0, "a request that asks for nothing"
        total = self.prompt_tokens + self.length(ids[: self.prompt_tokens])
        stop, tokens, reason = asyncio.Event(), [], "abort"
        self.running.add(stop)
        name = body.get("rid")
        self.named[name] = stop
        written = self.written.setdefault(name, [])
        try:
            while not stop.is_set():
                if not self.unpaused:
                    await asyncio.sleep(self.tick)
                    continue
                position = len(ids) + len(tokens)
                if position >= total or len(tokens) >= budget:
                    reason = "stop" if position >= total else "length"
                    break
                tokens.append(1000 + position)
                written.append(self.weight_version)
                await asyncio.sleep(self.tick)
        finally:
            self.running.discard(stop)
        return {
            "text": self.text * len(tokens),
            "meta_info": {
                "finish_reason": {"type": reason},
                "weight_version": self.weight_version,
                "token_versions": written[:],
                "output_token_logprobs": [[-0.5, token, None] for token in tokens],
            },
        }
