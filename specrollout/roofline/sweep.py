"""A sweep: measured seconds per pass over batch, context and draft length, in the published CSV columns."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from april.errors import UsageError
from specrollout.roofline.model import Floats

TARGET, DRAFTER, VERIFY = "target_decode", "drafter_decode", "target_verify"
MODES = (TARGET, DRAFTER, VERIFY)
UNUSED_MODES = ("target_decode_sd",)  # the target's plain steps in an engine that speculates: measured, not modelled
WHOLE = ("batch", "seq", "gamma", "n_samples")
TIMES_MS = ("mean_ms", "median_ms", "min_ms", "max_ms")
COLUMNS = ("model", "batch", "seq", "gamma", "mode", "mean_ms", "median_ms", "std_ms", "min_ms", "max_ms", "n_samples")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured point: the median of `samples` passes; `line` is its line in the file."""

    line: int
    mode: str
    batch: int
    context: int
    gamma: int
    seconds: float
    samples: int

    @property
    def point(self) -> tuple[int, int, int]:
        """(B, S, gamma)."""
        return self.batch, self.context, self.gamma


@dataclass(frozen=True, slots=True)
class Points:
    """Rows of one mode and draft length as arrays."""

    batch: Floats
    context: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True)
class Cycles:
    """Points of one draft length at which all three times were measured."""

    gamma: int
    batch: Floats
    context: Floats
    t_target: Floats
    t_drafter: Floats
    t_verify: Floats

    @property
    def seconds(self) -> Floats:
        """gamma T_D + T_V, as measured."""
        return self.gamma * self.t_drafter + self.t_verify


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rows of one model that a fit can use: known modes, at least one request."""

    model: str
    rows: tuple[Row, ...]

    @property
    def gammas(self) -> list[int]:
        """Draft lengths, in order."""
        return sorted({row.gamma for row in self.rows if row.mode != TARGET})

    def where(self, keep: Callable[[Row], bool]) -> Sweep:
        """The sweep with some of its rows."""
        return replace(self, rows=tuple(row for row in self.rows if keep(row)))

    def points(self, mode: str, gamma: int = 0) -> Points:
        """The rows of a mode and draft length (0: the target's plain decode)."""
        rows = [row for row in self.rows if row.mode == mode and row.gamma == gamma]
        return Points(*(np.array(column, dtype=float) for column in _columns(rows)))

    def cycles(self, gamma: int) -> Cycles:
        """Points with T_T, T_D and T_V, ordered by B and S."""
        times = {(row.mode, row.point): row.seconds for row in self.rows}
        found = []
        for batch, context in sorted({(row.batch, row.context) for row in self.rows if row.gamma == gamma}):
            keys = (
                (TARGET, (batch, context, 0)),
                (DRAFTER, (batch, context, gamma)),
                (VERIFY, (batch, context, gamma)),
            )
            if all(key in times for key in keys):
                found.append((batch, context, *(times[key] for key in keys)))
        columns = np.array(found, dtype=float).reshape(-1, 5).T
        return Cycles(gamma, columns[0], columns[1], columns[2], columns[3], columns[4])


def _columns(rows: list[Row]) -> tuple[list[float], list[float], list[float]]:
    return [row.batch for row in rows], [row.context for row in rows], [row.seconds for row in rows]


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep; a UsageError names the rows (lines of the file) that are wrong."""
    lines = _lines(path)
    _reject(path, "mode that is none of " + ", ".join((*MODES, *UNUSED_MODES)), _bad(lines, _unknown_mode))
    _reject(path, "value that is no whole number >= 0 in batch, seq, gamma or n_samples", _bad(lines, _bad_whole))
    _reject(path, "time that is no positive number", _bad(lines, _bad_time))
    _reject(
        path,
        "draft length that does not fit the mode (0 for target_decode, >= 1 for the others)",
        _bad(lines, _bad_gamma),
    )
    rows = [
        Row(
            n,
            r["mode"],
            int(r["batch"]),
            int(r["seq"]),
            int(r["gamma"]),
            float(r["median_ms"]) / 1e3,
            int(r["n_samples"]),
        )
        for n, r in lines
        if r["mode"] in MODES and int(r["batch"]) > 0
    ]
    _reject(path, "point that an earlier row has measured", _repeats(rows))
    models = sorted({r["model"] for _, r in lines})
    if len(models) > 1:
        raise UsageError(f"sweep {path} holds {len(models)} models ({', '.join(models)}); one is expected")
    _check_coverage(path, rows)
    return Sweep(models[0], tuple(rows))


def _lines(path: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"sweep {path} has no column {', '.join(missing)}; expected: {', '.join(COLUMNS)}")
            lines = [(reader.line_num, {name: row.get(name) or "" for name in COLUMNS}) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"sweep {path}: {error}") from error
    if not lines:
        raise UsageError(f"sweep {path} has no rows")
    return lines


def _bad(lines: list[tuple[int, dict[str, str]]], wrong: Callable[[dict[str, str]], bool]) -> list[int]:
    return [number for number, row in lines if wrong(row)]


def _reject(path: Path, what: str, lines: list[int]) -> None:
    if lines:
        raise UsageError(f"sweep {path}, {name_rows(lines)}: a {what}")


def name_rows(lines: Iterable[int]) -> str:
    """'row 7', 'rows 7, 9' or 'rows 7, 9, 11, 13, 15 and 4 more': lines of the file, the header being 1."""
    numbers = sorted(lines)
    shown = ", ".join(map(str, numbers[:5]))
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    return f"row{'s' if len(numbers) > 1 else ''} {shown}{more}"


def _unknown_mode(row: dict[str, str]) -> bool:
    return row["mode"] not in (*MODES, *UNUSED_MODES)


def _bad_whole(row: dict[str, str]) -> bool:
    return any(not row[name].strip().isdecimal() for name in WHOLE)


def _bad_time(row: dict[str, str]) -> bool:
    return any(not _number(row[name]) > 0 for name in TIMES_MS) or not _number(row["std_ms"]) >= 0


def _bad_gamma(row: dict[str, str]) -> bool:
    return (int(row["gamma"]) == 0) != (row["mode"] == TARGET)


def _number(text: str) -> float:
    """The number, or NaN, which fails every comparison."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _repeats(rows: list[Row]) -> list[int]:
    seen: set[tuple[str, tuple[int, int, int]]] = set()
    repeated = []
    for row in rows:
        if (row.mode, row.point) in seen:
            repeated.append(row.line)
        seen.add((row.mode, row.point))
    return repeated


def _check_coverage(path: Path, rows: list[Row]) -> None:
    """Every mode, for every draft length, at two batches or more: less leaves parameters that nothing decides."""
    gammas = sorted({row.gamma for row in rows if row.gamma})
    wanted = [(TARGET, 0), *((mode, gamma) for gamma in gammas or [1] for mode in (DRAFTER, VERIFY))]
    for mode, gamma in wanted:
        found = [row for row in rows if row.mode == mode and (row.gamma == gamma or not gammas)]
        at = f" at gamma {gamma}" if gamma and gammas else ""
        if not found:
            raise UsageError(f"sweep {path} has no rows of mode {mode}{at}; {', '.join(MODES)} are all needed")
        batches = {row.batch for row in found}
        if len(batches) < 2:
            lines = name_rows(row.line for row in found)
            raise UsageError(
                f"sweep {path}, {lines}: mode {mode}{at} has one batch only, {batches.pop()}; a fit needs two or more"
            )
