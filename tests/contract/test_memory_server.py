"""SGLang's real server on a CPU with our memory saver where torch_memory_saver would be."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from april.launch.memory import server as measured

pytestmark = [
    *(pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(600)),
    pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed"),
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured.policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def server(policy: Path) -> Iterator[measured.Server]:
    with measured.running(policy) as running:
        yield running


def test_a_round_frees_the_regions_and_says_the_same_after_the_update(server: measured.Server, policy: Path) -> None:
    with measured.traced(server) as trace:
        found = measured.round_trip(server, policy, trace)
    regions = sum(measured.expected(policy).values())
    assert found["full"] - found["released"] >= 0.95 * regions
    assert found["updated"]
    assert found["tokens_equal"]
    assert [name for _, name in trace.phases] == ["rollout", "released", "weights back", "all back, rollout"]


def test_weights_without_a_backup_are_gone_until_they_are_written(server: measured.Server, policy: Path) -> None:
    """So that the test above shows an update, not memory that was never given back."""
    before = server.generate()
    server.release()
    server.post("resume_memory_occupation")
    assert server.generate() != before
    server.post("update_weights_from_disk", model_path=str(policy))
    assert server.generate() == before


def test_the_cache_alone_is_released_while_weights_stay(server: measured.Server) -> None:
    before = server.roll_out()
    full = server.resident()
    server.post("flush_cache?timeout=30")
    server.post("release_memory_occupation", tags=["kv_cache"])
    used = measured.REQUESTS * measured.LENGTH / measured.TOKENS
    assert full - server.resident() >= 0.95 * used * 16384 * measured.TOKENS
    server.post("resume_memory_occupation", tags=["kv_cache"])
    assert server.roll_out() == before


def test_an_aborted_rounds_cache_is_free_at_once_while_weights_stay(server: measured.Server, policy: Path) -> None:
    """The partials cost host memory only; then the cache can go by itself, and they go on where they were."""
    server.post("update_weights_from_disk", model_path=str(policy))
    server.post("flush_cache?timeout=30")
    found = measured.abort_round(server)
    assert found["held"] >= measured.REQUESTS * measured.LENGTH
    assert found["freed_after_s"] < 5
    assert any(0 < tokens < measured.FLYING for tokens in found["partials"])
    full = server.resident()
    server.post("flush_cache?timeout=30")
    server.post("release_memory_occupation", tags=["kv_cache"])
    assert full - server.resident() >= 0.9 * found["held"] * 16384
    server.post("resume_memory_occupation", tags=["kv_cache"])
    assert len(server.generate(8)) == 8


def test_fifty_cycles_do_not_creep(server: measured.Server, policy: Path) -> None:
    """slime#579, #638, #651, #1136."""
    server.post("update_weights_from_disk", model_path=str(policy))
    assert measured.cycles(server) < 0.01


def test_weights_with_a_backup_come_back_by_themselves(policy: Path) -> None:
    with measured.running(policy, "--enable-weights-cpu-backup") as server:
        before, full = server.roll_out(), server.resident()
        server.release()
        assert full - server.resident() >= 0.95 * sum(measured.expected(policy).values())
        server.post("resume_memory_occupation")
        assert server.roll_out() == before
