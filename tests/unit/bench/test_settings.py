"""Settings: what is refused, and that a file keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from april.errors import UsageError
from april.launch.bench import settings as settings_of
from april.launch.bench.settings import Settings


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"modes": ("sync", "fast")}, "use sync, upstream-partial, april"),
        ({"modes": ("sync", "sync")}, "at most once"),
        ({"modes": ()}, "--modes"),
        ({"batch": 0}, "--batch 0: at least 1"),
        ({"samples": 0}, "--samples"),
        ({"over_sampling": 0.5}, "--over-sampling 0.5"),
        ({"over_sampling": float("nan")}, "--over-sampling nan"),
        ({"over_sampling": float("inf")}, "--over-sampling inf"),
        ({"concurrency": 1}, "--concurrency 1"),
        ({"rounds": 0}, "--rounds"),
        ({"warm_up": -1}, "--warm-up"),
        ({"max_len": 4}, "--max-len"),
        ({"cap": -1}, "--cap"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Settings(**given)


def test_a_file_keeps_them(tmp_path: Path) -> None:
    made = Settings(modes=("april", "sync"), over_sampling=1.5, lengths=(4, 5, 6))
    made.write(tmp_path / "settings.json")
    assert settings_of.of_this_run({settings_of.VARIABLE: str(tmp_path / "settings.json")}) == made


def test_what_follows_from_them() -> None:
    made = Settings(batch=5, over_sampling=1.5, rounds=10, warm_up=2)
    assert (made.started, made.cycles) == (8, 12)
    assert Settings(batch=3, over_sampling=1.0).started == 3
