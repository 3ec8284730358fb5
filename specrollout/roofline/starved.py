"""Rows of a sweep that hold the time of fewer requests than they say.

A harness that submits B long prompts while the engine is already generating has requests that finish before the last
one starts: the steps in which all B run become few, or none, and the median is that of a smaller batch, or of steps
without the shared prefix. Such a row shows two things, and both are asked for:

- it lost steps: fewer samples than the same S and gamma has at small batches, where nothing is late;
- it leaves the line: with B and gamma fixed every term of a step is linear in S, so the two next shorter contexts
  foretell it.

Both are properties of the sweep: no form and no fit takes part.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from specrollout.roofline.sweep import Row, Sweep

STEPS_KEPT = 0.95  # a row with at least this share of the expected samples lost none
OFF_LINE = 0.05  # relative distance from the line in S
SMALL_BATCHES = range(2, 9)  # batch 1 is left out: harnesses run their warm-up in it


@dataclass(frozen=True, slots=True)
class Starved:
    """A row, the seconds that the line in S foretells for it, and the share of the expected steps that it kept."""

    row: Row
    expected_s: float
    steps_kept: float


def starved_rows(sweep: Sweep) -> list[Starved]:
    """The starved rows, in the order of the file."""
    expected_samples = _samples_at_small_batches(sweep)
    series: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for row in sweep.rows:
        series[row.mode, row.gamma, row.batch].append(row)
    found = []
    for rows in series.values():
        sound: list[Row] = []
        for row in sorted(rows, key=lambda r: r.context):
            kept = row.samples / expected_samples.get((row.mode, row.gamma, row.context), row.samples)
            expected = _line(sound, row.context) if len(sound) >= 2 else row.seconds
            if kept < STEPS_KEPT and abs(row.seconds / expected - 1.0) > OFF_LINE:
                found.append(Starved(row, expected, kept))
            else:
                sound.append(row)
    return sorted(found, key=lambda starved: starved.row.line)


def without_starved(sweep: Sweep) -> Sweep:
    """The sweep without its starved rows."""
    lines = {starved.row.line for starved in starved_rows(sweep)}
    return sweep.where(lambda row: row.line not in lines)


def _line(sound: list[Row], context: int) -> float:
    """The two longest sound contexts, extrapolated; time does not fall as the context grows."""
    left, right = sound[-2:]
    slope = max(0.0, (right.seconds - left.seconds) / (right.context - left.context))
    return right.seconds + slope * (context - right.context)


def _samples_at_small_batches(sweep: Sweep) -> dict[tuple[str, int, int], float]:
    samples: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for row in sweep.rows:
        if row.batch in SMALL_BATCHES:
            samples[row.mode, row.gamma, row.context].append(row.samples)
    return {key: float(median(values)) for key, values in samples.items() if median(values) > 0}
