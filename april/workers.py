"""The engines behind the router, over HTTP: who they are, aborting them until idle, their load and weight version.

Routers do not forward aborts, so each worker is asked itself. Requests arrive late (the router still holds them), so it
is asked again until it idles. A worker that cannot be reached twice in a row is dead and needs no abort; one whose load
is unknown is not idle.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from april.core import Interrupt
from april.staleness import parse_version

logger = logging.getLogger(__name__)

# An abort takes effect within a scheduler step or two, so the first looks follow soon.
FIRST_LOOK_S = 0.02
LOOK_EVERY_S = 0.5
REQUEST_TIMEOUT_S = 5.0
DEAD_AFTER = 2
PAUSES = {Interrupt.RETRACT: "retract", Interrupt.INPLACE: "in_place"}
"""SGLang's names of the modes in which requests stay."""
REPORT = "april_pause"
TOTAL_KEYS = ("num_reqs", "num_total_reqs", "total_reqs")
PART_KEYS = (("num_running_reqs", "total_running_reqs"), ("num_waiting_reqs", "total_waiting_reqs"))


class Workers:
    """The workers of one router. ``transport`` replaces the network in tests."""

    def __init__(self, router: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.router = router
        self._transport = transport

    def _client(self, timeout: float = REQUEST_TIMEOUT_S) -> httpx.AsyncClient:
        # Engines are inside the cluster: a proxy from the environment would be wrong.
        return httpx.AsyncClient(transport=self._transport, timeout=timeout, trust_env=False)

    async def urls(self, client: httpx.AsyncClient) -> list[str]:
        """Base addresses of the workers; two router generations list them differently. Raises httpx.HTTPError."""
        response = await client.get(f"{self.router}/workers")
        if response.status_code == 404:
            response = await client.get(f"{self.router}/list_workers")
        response.raise_for_status()
        body = response.json()
        return list(body["urls"]) if "urls" in body else [worker["url"] for worker in body["workers"]]

    async def abort_until_idle(self, deadline: float) -> bool:
        """Abort all requests of all workers until each idles, is dead, or ``deadline`` (``time.monotonic``) has come.

        Returns whether all of them idle or are dead. Never raises for an engine or a router that is unwell.
        """
        async with self._client() as client:
            while time.monotonic() < deadline:
                try:
                    urls = await self.urls(client)
                    break
                except (httpx.HTTPError, ValueError, KeyError) as error:
                    logger.warning("abort: the router at %s does not list its workers: %r", self.router, error)
                    await _pause(LOOK_EVERY_S, deadline)
            else:
                return False
            return all(await asyncio.gather(*(self._abort_worker(client, url, deadline) for url in urls)))

    async def _abort_worker(self, client: httpx.AsyncClient, url: str, deadline: float) -> bool:
        unreachable, pause = 0, FIRST_LOOK_S
        while (left := deadline - time.monotonic()) > 0:
            load = None
            try:
                # A time limit of ours: httpx has one for each step of a request, not for all of it.
                load = await asyncio.wait_for(self._abort_once(client, url), min(REQUEST_TIMEOUT_S, left))
                unreachable = 0
            except httpx.ConnectError as error:
                unreachable += 1
                if unreachable == DEAD_AFTER:
                    logger.warning("abort: worker %s cannot be reached (%r): taken for dead", url, error)
                    return True
            except (httpx.HTTPError, ValueError, asyncio.TimeoutError) as error:
                logger.warning("abort: worker %s: %r", url, error)
            if load == 0:
                return True
            await _pause(pause, deadline)
            pause = min(2 * pause, LOOK_EVERY_S)
        logger.warning("abort: worker %s was not seen idle by the deadline", url)
        return False

    async def _abort_once(self, client: httpx.AsyncClient, url: str) -> int | None:
        await client.post(f"{url}/abort_request", json={"abort_all": True})
        return await self._load(client, url)

    async def _load(self, client: httpx.AsyncClient, url: str) -> int | None:
        response = await client.get(f"{url}/v1/loads?include=core")
        return requests_in(response.json()) if response.is_success else None

    async def pause(self, mode: Interrupt, deadline: float) -> None:
        """Every worker keeps its requests and stops. One that does not answer goes on, or is dead: a line says so."""
        await self._tell("pause_generation", {"mode": PAUSES[mode]}, deadline)

    async def resume(self) -> None:
        """Every worker that was paused goes on."""
        await self._tell("continue_generation", {}, time.monotonic() + REQUEST_TIMEOUT_S)

    async def abort(self, names: Iterable[str]) -> None:
        """Abort the requests of these names, wherever they are."""
        for name in names:
            await self._tell("abort_request", {"rid": name}, time.monotonic() + REQUEST_TIMEOUT_S)

    async def _tell(self, endpoint: str, body: dict[str, Any], deadline: float) -> None:
        async def tell(client: httpx.AsyncClient, url: str) -> None:
            try:
                response = await client.post(f"{url}/{endpoint}", json=body)
                response.raise_for_status()
            except httpx.HTTPError as error:
                logger.warning("%s: worker %s: %r", endpoint, url, error)

        async with self._client(max(0.1, deadline - time.monotonic())) as client:
            try:
                await asyncio.gather(*(tell(client, url) for url in await self.urls(client)))
            except (httpx.HTTPError, ValueError, KeyError) as error:
                logger.warning("%s: the router at %s does not list its workers: %r", endpoint, self.router, error)

    async def paused(self) -> list[Mapping[str, Any]]:
        """What each worker's scheduler reports of its pauses (``april.patches.pause.scheduler``)."""
        async with self._client() as client:
            try:
                answers = [(await client.get(f"{url}/server_info")).json() for url in await self.urls(client)]
                return [state[REPORT] for answer in answers for state in answer["internal_states"]]
            except (httpx.HTTPError, ValueError, KeyError) as error:
                logger.warning("the workers do not tell of their pauses: %r", error)
                return []

    async def load(self) -> int | None:
        """Requests in all workers; None where one of them does not say."""
        async with self._client() as client:
            try:
                urls = await self.urls(client)
                loads = await asyncio.gather(*(self._load(client, url) for url in urls))
            except (httpx.HTTPError, ValueError, KeyError):
                return None
        known = [load for load in loads if load is not None]
        return sum(known) if len(known) == len(loads) else None

    async def capacity(self) -> int | None:
        """Tokens of KV cache of all workers together; None where one of them does not say."""
        async with self._client() as client:
            try:
                responses = [await client.get(f"{url}/v1/loads?include=core") for url in await self.urls(client)]
                ranks = [rank for response in responses for rank in response.json()["loads"]]
                return sum(int(rank["max_total_num_tokens"]) for rank in ranks)
            except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                logger.warning("the workers do not tell their KV capacity: %r", error)
                return None

    async def weight_version(self) -> int | None:
        """The newest weight version that a worker reports; None where none reports a number."""
        async with self._client() as client:
            try:
                urls = await self.urls(client)
            except (httpx.HTTPError, ValueError, KeyError) as error:
                logger.warning("the router at %s does not list its workers: %r", self.router, error)
                return None
            versions = await asyncio.gather(*(self._version(client, url) for url in urls))
        return max((version for version in versions if version is not None), default=None)

    async def _version(self, client: httpx.AsyncClient, url: str) -> int | None:
        for endpoint in ("/model_info", "/get_weight_version"):
            try:
                response = await client.get(f"{url}{endpoint}")
                if response.is_success:
                    return parse_version(response.json().get("weight_version"))
            except (httpx.HTTPError, ValueError) as error:
                logger.warning("worker %s does not tell its weight version: %r", url, error)
                return None
        return None


async def _pause(seconds: float, deadline: float) -> None:
    await asyncio.sleep(min(seconds, max(0.0, deadline - time.monotonic())))


def requests_in(load: Any) -> int | None:
    """Running and waiting requests in an answer of ``/v1/loads``, over its ranks; None where it does not say."""
    if isinstance(load, dict) and "loads" in load:
        load = load["loads"]
    if isinstance(load, list):
        loads = [requests_in(rank) for rank in load]
        known = [number for number in loads if number is not None]
        return sum(known) if loads and len(known) == len(loads) else None
    if not isinstance(load, dict):
        return None
    for key in TOTAL_KEYS:
        if isinstance(load.get(key), int):
            return int(load[key])
    parts = [next((load[key] for key in keys if isinstance(load.get(key), int)), None) for keys in PART_KEYS]
    return None if None in parts else sum(part for part in parts if part is not None)
