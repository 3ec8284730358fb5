"""The newest metrics of a run, as Prometheus fetches them."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from april.errors import UsageError
from april.launch.train import prometheus


def fetch(url: str) -> dict[tuple[str, str], float]:
    """Name and tag of each sample -> value."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {(each.name, each.labels.get("tag", "")): each.value for family in families for each in family.samples}


def test_a_fetch_has_the_newest_values(tmp_path: Path) -> None:
    def log(**row: Any) -> None:
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    exporter = prometheus.Exporter(("127.0.0.1", 0))
    with exporter.serving(tmp_path):
        assert fetch(exporter.url) == {}
        log(**{"time": 5.0, "step_key": "rollout/step", "step": 1, "april/max_lag": 1, "rollout/rewards": float("nan")})
        log(**{"time": 6.0, "step_key": "memory/operations", "pid": 7, "memory/kv_cache/reserved": 64, "memory/w/r": 1})
        assert fetch(exporter.url) == {
            ("april_metrics_time_seconds", ""): 6.0,
            ("april_max_lag", ""): 1.0,
            ("memory_reserved", "kv_cache"): 64.0,
            ("memory_r", "w"): 1.0,
        }
        log(**{"time": 7.0, "step_key": "rollout/step", "step": 2, "april/max_lag": 3})
        decided = {"engine": "0", "step": 1, "kind": "toggle", "choice": "speculating"}
        (tmp_path / "decisions.jsonl").write_text(json.dumps(decided) + "\n")
        found = fetch(exporter.url)
        assert (found["april_max_lag", ""], found["april_sd_share", ""]) == (3.0, 1.0)
    with pytest.raises(OSError, match="refused"):
        fetch(exporter.url)


@given(st.text(min_size=1))
def test_names_are_those_that_prometheus_takes(name: str) -> None:
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", prometheus.sanitised(name))


@pytest.mark.parametrize(
    ("given", "listen"),
    [
        ("0", None),
        ("auto", ("127.0.0.1", 0)),
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("10.0.0.1:auto", ("10.0.0.1", 0)),
    ],
)
def test_where_it_listens(given: str, listen: tuple[str, int] | None) -> None:
    assert prometheus.address(given) == listen


@pytest.mark.parametrize("given", ["", "any", "-1", "70000", "9400/metrics", "127.0.0.1:0"])
def test_what_is_no_port(given: str) -> None:
    with pytest.raises(UsageError, match="give a port"):
        prometheus.address(given)


def test_a_port_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1:\d+ \(Address already in use\)"):
            prometheus.Exporter(taken.getsockname())
