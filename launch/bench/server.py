"""The engines, over HTTP: a policy update, an empty prefix cache, and how long a step takes at which batch.

Steps are measured with a *staircase*: responses start together and end one after another, so that the number of running
ones goes down in steps, and the moments at which they end are seen. They take the way that rollouts take: through the
router, with log probabilities.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import httpx

from april.errors import AprilError
from april.launch.bench.bound import Stair
from april.workers import Workers

FLUSH_S = 10.0
REQUEST_S = 300.0
LEAD_STEPS = 2
"""Steps of the first stair, which contains the prefill and is not counted."""
STEPS = 8
"""Steps of each other stair."""
SHRINK = 0.6


def stairs(most: int) -> list[int]:
    """Running responses on each stair: all; one less, which is the first that counts; then about six tenths each."""
    sizes = [most, most - 1]
    while sizes[-1] > 1:
        sizes.append(max(1, min(sizes[-1] - 1, round(SHRINK * sizes[-1]))))
    return sizes


def plan(sizes: Sequence[int]) -> list[int]:
    """New tokens of each response: those that end with a stair are as many as the next stair has less."""
    lengths: list[int] = []
    for position, (size, after) in enumerate(zip(sizes, [*sizes[1:], 0], strict=True)):
        lengths += [1 + LEAD_STEPS + STEPS * position] * (size - after)
    return lengths


class Server:
    """The engines behind one router. ``transport`` replaces the network in tests."""

    def __init__(self, router: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._router = router
        self._workers = Workers(router, transport)
        self._transport = transport

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(transport=self._transport, timeout=REQUEST_S, trust_env=False, limits=limits)

    async def update(self, version: int | None) -> None:
        """Say that the weights are now ``version`` (None: they stay), and forget every prefix, as a weight sync does.

        The weights do not change: what a sync costs is no part of this benchmark.
        """
        async with self._client() as client:
            for url in await self._workers.urls(client):
                if version is not None:
                    await _post(client, f"{url}/update_weight_version", {"new_version": str(version)})
                await _post(client, f"{url}/flush_cache?timeout={FLUSH_S:g}", {})

    async def staircase(self, prompt: int, most: int) -> tuple[list[Stair], float]:
        """Measure steps from ``most`` running responses down to one, whose prompts have ``prompt`` tokens.

        Also the seconds that prefill took for each token of the prompts.
        """
        await self.update(None)
        sizes = stairs(most)
        lengths = plan(sizes)
        started = time.monotonic()
        async with self._client() as client:
            requests = (self._generate(client, number, prompt, length) for number, length in enumerate(lengths))
            ended = await asyncio.gather(*requests)
        last: dict[int, float] = {}
        for length, when in zip(lengths, ended, strict=True):
            last[length] = max(last.get(length, 0.0), when)
        ends = [last[length] for length in sorted(last)]
        found = []
        for position in range(1, len(sizes)):
            mean = prompt + 1 + LEAD_STEPS + STEPS * (position - 0.5)
            found.append(Stair(sizes[position], STEPS, sizes[position] * mean, ends[position] - ends[position - 1]))
        lead = LEAD_STEPS * found[0].step_s
        return found, max(0.0, ends[0] - started - lead) / (most * prompt)

    async def _generate(self, client: httpx.AsyncClient, number: int, prompt: int, tokens: int) -> float:
        """When the answer came. Prompts share no prefix, and only ids that every vocabulary has."""
        ids = [2 + (number + place * (number + 1)) % 29 for place in range(prompt)]
        body = {
            "input_ids": ids,
            "sampling_params": {"temperature": 1.0, "max_new_tokens": tokens, "ignore_eos": True},
            "return_logprob": True,
        }
        answer = (await _post(client, f"{self._router}/generate", body)).json()
        made = answer["meta_info"]["completion_tokens"]
        if made != tokens:
            raise AprilError(f"the engine made {made} of {tokens} tokens while its speed was measured")
        return time.monotonic()


async def _post(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> httpx.Response:
    response = await client.post(url, json=body)
    if not response.is_success:
        raise AprilError(f"{url} answers {response.status_code}: {response.text.strip()[:200]}")
    return response
