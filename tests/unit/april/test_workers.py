"""Aborting every worker until it idles: late requests, dead workers, unknown loads, one deadline. Cases 12 and 13."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from april.workers import Workers, requests_in

Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]


class Cluster(httpx.AsyncBaseTransport):
    """Workers by name, each with a load that an abort brings down; ``odd[name]`` answers in its place."""

    def __init__(self, loads: dict[str, int], old_router: bool = False) -> None:
        self.loads = loads
        self.old_router = old_router
        self.aborts = dict.fromkeys(loads, 0)
        self.odd: dict[str, Handler] = {}
        self.late: dict[str, int] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        name, path = request.url.host, request.url.path
        if name == "router":
            urls = [f"http://{worker}" for worker in self.loads]
            if self.old_router:
                return httpx.Response(200, json={"urls": urls}) if path == "/list_workers" else httpx.Response(404)
            return httpx.Response(200, json={"workers": [{"url": url} for url in urls]})
        if name in self.odd:
            return await self.odd[name](request)
        if path == "/abort_request":
            self.aborts[name] += 1
            self.loads[name] = self.late.pop(name, 0)
        if path == "/model_info":
            return httpx.Response(200, json={"weight_version": str(self.aborts[name] + 4)})
        return httpx.Response(200, json={"loads": [{"num_running_reqs": self.loads[name], "num_waiting_reqs": 0}]})


async def refuses(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


async def hangs(request: httpx.Request) -> httpx.Response:
    await asyncio.sleep(100)
    raise AssertionError


async def answers_500(request: httpx.Request) -> httpx.Response:
    return httpx.Response(500)


async def answers_html(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, text="<html>")


def workers(cluster: Cluster) -> Workers:
    return Workers("http://router", cluster)


@pytest.mark.parametrize("old_router", [False, True])
async def test_every_worker_is_aborted_until_idle(old_router: bool) -> None:
    cluster = Cluster({"a": 3, "b": 0, "c": 7}, old_router)
    assert await workers(cluster).abort_until_idle(time.monotonic() + 5)
    assert all(count >= 1 for count in cluster.aborts.values())
    assert await workers(cluster).load() == 0


async def test_a_late_request_is_aborted_as_well() -> None:
    cluster = Cluster({"a": 3})
    cluster.late["a"] = 2
    assert await workers(cluster).abort_until_idle(time.monotonic() + 5)
    assert cluster.aborts["a"] == 2


async def test_a_dead_worker_is_tolerated_and_the_others_aborted() -> None:
    cluster = Cluster({"dead": 1, "b": 5})
    cluster.odd["dead"] = refuses
    start = time.monotonic()
    assert await workers(cluster).abort_until_idle(time.monotonic() + 30)
    assert time.monotonic() - start < 5
    assert cluster.loads["b"] == 0


@pytest.mark.parametrize("odd", [hangs, answers_500, answers_html])
async def test_an_unknown_load_is_not_idle(odd: Handler) -> None:
    cluster = Cluster({"odd": 1, "b": 5})
    cluster.odd["odd"] = odd
    start = time.monotonic()
    assert not await workers(cluster).abort_until_idle(start + 0.3)
    assert 0.25 < time.monotonic() - start < 1.0, "one deadline for all of it"
    assert cluster.loads["b"] == 0


async def test_a_router_that_is_gone_ends_at_the_deadline() -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    gone = Workers("http://router", httpx.MockTransport(handler))
    start = time.monotonic()
    assert not await gone.abort_until_idle(start + 0.2)
    assert time.monotonic() - start < 1.0
    assert await gone.load() is None
    assert await gone.weight_version() is None


async def test_the_load_is_unknown_when_one_worker_does_not_say() -> None:
    cluster = Cluster({"a": 3, "b": 4})
    assert await workers(cluster).load() == 7
    cluster.odd["b"] = answers_500
    assert await workers(cluster).load() is None


async def test_the_newest_weight_version_counts() -> None:
    cluster = Cluster({"a": 0, "b": 0, "dead": 0})
    cluster.aborts = {"a": 1, "b": 3, "dead": 9}
    cluster.odd["dead"] = refuses
    assert await workers(cluster).weight_version() == 7


@pytest.mark.parametrize(
    ("load", "requests"),
    [
        ({"num_running_reqs": 2, "num_waiting_reqs": 3}, 5),
        ({"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 0}, {"num_total_reqs": 4}]}, 5),
        ([{"num_reqs": 2}], 2),
        ({"num_running_reqs": 2}, None),
        ({"loads": []}, None),
        ({"loads": [{"num_reqs": 1}, {}]}, None),
        ("error", None),
        (None, None),
    ],
)
def test_requests_in_a_load(load: Any, requests: int | None) -> None:
    assert requests_in(load) == requests
