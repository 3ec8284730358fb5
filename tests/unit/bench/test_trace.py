"""The trace: what a file may hold, and that lengths depend on nothing but distribution, scale and seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from april.errors import UsageError
from april.launch.bench import trace

SHARED = Path(__file__).resolve().parents[4] / "shared/data/lengths/servegen_r1_pooled_output_tokens.json"


def written(path: Path, body: object) -> str:
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return str(path)


def test_a_file_with_or_without_the_key_pmf(tmp_path: Path) -> None:
    bare = trace.distribution(written(tmp_path / "a.json", {"4": 1, "2": 3, "9": 0}))
    keyed = trace.distribution(written(tmp_path / "b.json", {"source": "x", "pmf": {"2": 0.75, "4": 0.25}}))
    assert bare.lengths == keyed.lengths == (2, 4)
    assert bare.cumulative == keyed.cumulative == (0.75, 1.0)
    assert [bare.quantile(share) for share in (0.0, 0.75, 0.76, 1.0)] == [2, 2, 4, 4]


@pytest.mark.parametrize(
    "body", ["", "[1, 2]", {}, {"pmf": {}}, {"pmf": {"a": 1}}, {"pmf": {"0": 1}}, {"3": -1}, {"3": "x"}]
)
def test_what_is_no_distribution_is_named(tmp_path: Path, body: object) -> None:
    with pytest.raises(UsageError, match=r"--lengths .*pmf\.json"):
        trace.distribution(written(tmp_path / "pmf.json", body))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json: No such file"):
        trace.distribution(str(tmp_path / "none.json"))


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(0, 200), st.integers(8, 4096), st.integers(0, 10**6))
def test_lengths_are_scaled_and_a_longer_trace_begins_with_the_shorter(
    count: int, more: int, max_len: int, seed: int
) -> None:
    drawn = trace.distribution(None).draw(count + more, max_len, seed)
    assert drawn[:count] == trace.distribution(None).draw(count, max_len, seed)
    assert all(1 <= length <= max_len for length in drawn)


def test_another_seed_is_another_trace() -> None:
    distribution = trace.distribution(None)
    assert distribution.draw(50, 512, 0) != distribution.draw(50, 512, 1)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not here")
def test_the_distribution_that_comes_with_us_is_that_of_the_file() -> None:
    ours, theirs = trace.distribution(None), trace.distribution(str(SHARED))
    for share in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999):
        assert ours.quantile(share) == pytest.approx(theirs.quantile(share), rel=0.06)
    means = [sum(found.draw(20_000, 32768, 3)) / 20_000 for found in (ours, theirs)]
    assert means[0] == pytest.approx(means[1], rel=0.05)


def test_prompts_are_in_every_vocabulary() -> None:
    from april.launch.quickstart import characters

    made = trace.prompts(100, 0)
    assert made == trace.prompts(100, 0)
    assert all(len(characters.encode(prompt)) == 6 for prompt in made)
