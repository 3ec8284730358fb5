"""Errors on rows that a fit has not seen: other draft lengths, larger batches, longer contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from specrollout.roofline.model import LatencyModel
from specrollout.roofline.starved import starved_rows
from specrollout.roofline.sweep import MODES, TARGET, Row, Sweep
from specrollout.roofline.validate import figures, starved_json

SEEN_BATCH = 16
SEEN_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Split:
    """The rows that a fit sees, and those that it is asked for."""

    name: str
    seen: Sweep
    held_out: Sweep


def splits(sweep: Sweep) -> Iterator[Split]:
    """Shortest and longest draft to those between; B <= 16 to above; S <= 1024 to above.

    T_T has no draft length: in the first split its rows are on both sides. A split that leaves a side without rows is
    left out.
    """
    gammas = sweep.gammas
    ends = {gammas[0], gammas[-1]}
    divisions: dict[str, tuple[Callable[[Row], bool], Callable[[Row], bool]]] = {
        "gamma": (lambda r: r.mode == TARGET or r.gamma in ends, lambda r: r.mode == TARGET or r.gamma not in ends),
        "batch": (lambda r: r.batch <= SEEN_BATCH, lambda r: r.batch > SEEN_BATCH),
        "context": (lambda r: r.context <= SEEN_CONTEXT, lambda r: r.context > SEEN_CONTEXT),
    }
    for name, (seen, held_out) in divisions.items():
        split = Split(name, sweep.where(seen), sweep.where(held_out))
        if all(_has_every_mode(side) for side in (split.seen, split.held_out)):
            yield split


def _has_every_mode(sweep: Sweep) -> bool:
    return all(any(row.mode == mode for row in sweep.rows) for mode in MODES)


def crossval(sweep: Sweep, fit: Callable[[Sweep], LatencyModel], accepted: float | None = None) -> dict[str, Any]:
    """Figures of the held-out rows per split, with and without the starved ones.

    Which rows are starved is a property of the whole sweep; no time of a held-out row reaches the fit.
    """
    starved = starved_rows(sweep)
    lines = {found.row.line for found in starved}
    result: dict[str, Any] = {}
    for split in splits(sweep):
        model = fit(split.seen.where(lambda row: row.line not in lines))
        sound = split.held_out.where(lambda row: row.line not in lines)
        result[split.name] = {
            **figures(model, split.held_out, accepted),
            "without_starved": figures(model, sound, accepted),
            "starved": [starved_json(found) for found in starved if found.row in split.held_out.rows],
        }
    return result
