"""The newest value of every metric of a run, for Prometheus to fetch: ``--april-prometheus-port``.

Served by the supervisor from what the run writes, so a busy driver answers no slower. ``april/max_lag`` is
``april_max_lag``; ``memory/TAG/reserved`` is ``memory_reserved{tag=TAG,pid=...}``; ``april_sd_share`` is the share of
decode steps that speculated; ``april_metrics_time_seconds`` tells when the newest came.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from april.errors import UsageError
from april.launch.train.measures import MEMORY, SdShare
from april.launch.train.speculation import DECISIONS
from april.launch.train.tail import Tail
from april.telemetry import metrics

FLAG = "--april-prometheus-port"
LOOPBACK = "127.0.0.1"
NO_METRIC = ("time", "step", "step_key", "pid")
"""Of a row: when and where, not what."""
Labels = tuple[tuple[str, str], ...]
"""Names and values, in order."""


def address(given: str) -> tuple[str, int] | None:
    """Where to listen, from ``[ADDRESS:]PORT`` or ``auto``; port 0 is any that is free. None: nowhere.

    Raises:
        UsageError: for anything else.
    """
    host, _, port = given.rpartition(":")
    if given == "0":
        return None
    if port == "auto":
        return host or LOOPBACK, 0
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{FLAG} {given}: give a port (1 to 65535), ADDRESS:PORT, auto for a free one, or 0 for none")
    return host or LOOPBACK, int(port)


class Newest:
    """The newest value of each metric of a run, by name and labels. Reads on when asked."""

    def __init__(self, run_dir: Path) -> None:
        self._rows, self._decisions = Tail(run_dir / metrics.FILE), Tail(run_dir / DECISIONS)
        self._share = SdShare()
        self._values: dict[tuple[str, Labels], float] = {}

    def values(self) -> Mapping[tuple[str, Labels], float]:
        """As of now."""
        for row in self._rows.new():
            self._values["april_metrics_time_seconds", ()] = row["time"]
            self._values |= dict(samples(row))
        for entry in self._decisions.new():
            self._share.take(entry)
        if self._share.value is not None:
            self._values["april_sd_share", ()] = self._share.value
        return self._values


def samples(row: Mapping[str, Any]) -> Iterator[tuple[tuple[str, Labels], float]]:
    """The numbers of a line of ``metrics.jsonl``."""
    for name, value in row.items():
        if name in NO_METRIC or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            continue
        if name.startswith(MEMORY) and name.count("/") == 2:
            _, tag, what = name.split("/")
            yield (sanitised(f"memory_{what}"), (("tag", tag), ("pid", str(row.get("pid", ""))))), float(value)
        else:
            yield (sanitised(name), ()), float(value)


def sanitised(name: str) -> str:
    """A name that Prometheus takes."""
    plain = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


class Collector:
    """Gives the registry of prometheus_client the newest values at each fetch, one fetch at a time."""

    def __init__(self, newest: Newest) -> None:
        self._newest = newest
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Any]:
        """A gauge for each name."""
        from prometheus_client.core import GaugeMetricFamily

        with self._lock:
            values = dict(self._newest.values())
        families: dict[str, Any] = {}
        for (name, labels), value in values.items():
            names = [label for label, _ in labels]
            family = families.setdefault(name, GaugeMetricFamily(name, f"{name}, its newest value", labels=names))
            family.add_metric([text for _, text in labels], value)
        return families.values()


class Exporter:
    """Listens from the start, so that a port in use is an error then; answers while it serves.

    Raises:
        UsageError: for a bad value of the flag, or a port that is in use.
    """

    def __init__(self, listen: tuple[str, int]) -> None:
        if importlib.util.find_spec("prometheus_client") is None:
            raise UsageError(f"{FLAG}: prometheus_client is not installed here: pip install prometheus-client")
        try:
            self._server = ThreadingHTTPServer(listen, BaseHTTPRequestHandler)
        except OSError as error:
            name = ":".join(map(str, listen))
            raise UsageError(f"{FLAG}: cannot listen on {name} ({error.strerror}); auto finds a free port") from error

    @property
    def url(self) -> str:
        """Where Prometheus fetches."""
        return f"http://{self._server.server_address[0]!s}:{self._server.server_port}/metrics"

    @contextlib.contextmanager
    def serving(self, run_dir: Path) -> Iterator[None]:
        """Answer with the newest values of a run.

        Its thread starts here, after the driver was forked: a fork leaves other threads' locks locked for ever.
        """
        from prometheus_client import CollectorRegistry, MetricsHandler

        registry = CollectorRegistry()
        registry.register(Collector(Newest(run_dir)))
        self._server.RequestHandlerClass = MetricsHandler.factory(registry)
        threading.Thread(target=self._server.serve_forever, daemon=True, name="april-prometheus").start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()


def exporter(given: str) -> Exporter | None:
    """The exporter that the flag asks for, if it does.

    Raises:
        UsageError: for a bad value, or a port that is in use.
    """
    listen = address(given)
    return None if listen is None else Exporter(listen)
