"""Measuring a server's steps, and telling it of a policy update: over a network that is a function."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from april.errors import AprilError
from april.launch.bench import server as servers
from april.launch.bench.server import Server

STEP_S = 0.005


class Engine:
    """Every step takes ``STEP_S``, whatever runs; ``short`` tokens are left out of each response."""

    def __init__(self, short: int = 0, flushes: int = 200) -> None:
        self.short = short
        self.flushes = flushes
        self.asked: list[str] = []
        self.running = self.most = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/workers":
            return httpx.Response(200, json={"workers": [{"url": "http://one"}, {"url": "http://two"}]})
        if path == "/generate":
            return await self._generate(json.loads(request.content))
        self.asked.append(f"{request.url.host}{path}{request.content.decode()}")
        return httpx.Response(self.flushes if path == "/flush_cache" else 200, text="busy")

    async def _generate(self, body: dict[str, object]) -> httpx.Response:
        parameters = body["sampling_params"]
        assert isinstance(parameters, dict)
        assert parameters["ignore_eos"] is True
        self.running += 1
        self.most = max(self.most, self.running)
        tokens = parameters["max_new_tokens"]
        await asyncio.sleep(STEP_S * tokens)
        self.running -= 1
        return httpx.Response(200, json={"meta_info": {"completion_tokens": tokens - self.short}})


def server(engine: Engine) -> Server:
    return Server("http://router", httpx.MockTransport(engine))


@given(st.integers(2, 300))
def test_a_staircase_goes_down_to_one(most: int) -> None:
    sizes = servers.stairs(most)
    assert sizes[:2] == [most, most - 1]
    assert sizes[-1] == 1
    assert all(after < before for before, after in itertools.pairwise(sizes))
    lengths = servers.plan(sizes)
    assert len(lengths) == most
    for position, size in enumerate(sizes):
        # While the response that ends last on this stair runs, so do ``size`` in all.
        until = 1 + servers.LEAD_STEPS + servers.STEPS * position
        assert sum(length >= until for length in lengths) == size


async def test_steps_are_measured() -> None:
    engine = Engine()
    found, prefill = await server(engine).staircase(10, 4)
    assert [stair.batch for stair in found] == [3, 2, 1]
    assert engine.most == 4
    assert found[0].context == 3 * (10 + 1 + servers.LEAD_STEPS + servers.STEPS / 2)
    assert all(stair.step_s == pytest.approx(STEP_S, rel=0.5) for stair in found)
    assert 0 <= prefill < STEP_S


async def test_a_response_that_is_too_short_is_a_failure() -> None:
    with pytest.raises(AprilError, match="the engine made 2 of 3 tokens"):
        await server(Engine(short=1)).staircase(10, 4)


async def test_an_update_reaches_every_worker_and_empties_its_cache() -> None:
    engine = Engine()
    await server(engine).update(7)
    assert engine.asked == [
        'one/update_weight_version{"new_version":"7"}',
        "one/flush_cache{}",
        'two/update_weight_version{"new_version":"7"}',
        "two/flush_cache{}",
    ]


async def test_a_cache_that_cannot_be_emptied_is_a_failure() -> None:
    started = time.monotonic()
    with pytest.raises(AprilError, match=r"flush_cache.* answers 400: busy"):
        await server(Engine(flushes=400)).update(None)
    assert time.monotonic() - started < 5
