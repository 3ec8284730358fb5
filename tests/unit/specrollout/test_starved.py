"""Rows for which fewer requests ran than they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up import HALF_OF_7B, form, sweep_of

from specrollout.roofline.measure import Grid
from specrollout.roofline.starved import starved_rows, without_starved
from specrollout.roofline.sweep import DRAFTER, TARGET, Sweep

GRID = Grid((1, 4, 16, 64), (256, 512, 1024, 2048, 4096), (3, 7), 0, 20)


@pytest.fixture
def clean(tmp_path: Path) -> Sweep:
    return sweep_of(form(HALF_OF_7B, {}), GRID, tmp_path / "s.csv", noise=0.003)


def worse(sweep: Sweep, seconds: float, samples: int) -> Sweep:
    """One row that lost steps and has a factor of its time."""

    def spoil(row):  # type: ignore[no-untyped-def]
        if (row.mode, row.point) != (DRAFTER, (64, 4096, 7)):
            return row
        return replace(row, seconds=row.seconds * seconds, samples=samples)

    return replace(sweep, rows=tuple(map(spoil, sweep.rows)))


def test_a_clean_sweep_has_none(clean: Sweep) -> None:
    assert starved_rows(clean) == []
    assert without_starved(clean) == clean


@pytest.mark.parametrize("factor", [0.4, 0.8, 1.3])
def test_lost_steps_and_another_time(clean: Sweep, factor: float) -> None:
    found = starved_rows(worse(clean, factor, 6))
    assert [s.row.point for s in found] == [(64, 4096, 7)]
    assert found[0].steps_kept == pytest.approx(6 / 20)
    assert found[0].expected_s == pytest.approx(found[0].row.seconds / factor, rel=0.03)


@pytest.mark.parametrize(("factor", "samples"), [(0.4, 20), (1.0, 6)])
def test_one_sign_alone_is_not_enough(clean: Sweep, factor: float, samples: int) -> None:
    assert starved_rows(worse(clean, factor, samples)) == []


def test_those_of_the_public_sweeps(sweeps: dict[str, Sweep]) -> None:
    found = {model: starved_rows(sweep) for model, sweep in sweeps.items()}
    assert {model: len(rows) for model, rows in found.items()} == {"7b": 24, "14b": 10}
    for rows in found.values():
        assert all(s.row.context >= 2048 and s.row.batch >= 16 and s.row.mode != TARGET for s in rows)
        assert all(s.row.batch >= 24 or s.row.gamma == 11 for s in rows)
    worst = min(found["7b"], key=lambda s: s.row.seconds / s.expected_s)
    assert (worst.row.mode, worst.row.point) == (DRAFTER, (64, 4096, 11))
