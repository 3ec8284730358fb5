"""Ports of servers are none that the system hands out to connections."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from april.launch.engine import server
from april.launch.engine.server import LOWEST_PORT, SECOND, free_port


def test_neither_port_is_one_that_a_connection_may_get() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(50):
        port = free_port()
        assert LOWEST_PORT <= port < port + SECOND < max(lowest, 32_768)


@pytest.mark.parametrize("offset", [0, SECOND])
def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    wanted = free_port()
    others = iter([wanted, wanted + 1, wanted + 2, wanted + 3])
    monkeypatch.setattr(server, "random", random.Random())
    monkeypatch.setattr(server.random, "randrange", lambda *_: next(others), raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", wanted + offset))
        assert free_port() > wanted
