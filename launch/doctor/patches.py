"""The run-time patches by process, and what the overlay calls in each package, on the versions that are installed."""

from __future__ import annotations

from april.patches.core import Process

from .check import Check, fail, ok, unknown, warn
from .facts import Facts
from .reading import Unread
from .reading.fits import Fit


def checks(facts: Facts) -> list[Check]:
    """One line for each kind of process, and one for each package that we call."""
    if isinstance(facts.fits, Unread):
        return [unknown("patches", facts.fits.why, "make setup, or give slime's tree by SLIME_DIR")]
    by_process = [(process.value, [fit for fit in facts.fits if process in fit.processes]) for process in Process]
    called = dict.fromkeys(fit.package for fit in facts.fits if not fit.processes)
    by_package = [(name, [fit for fit in facts.fits if not fit.processes and fit.package == name]) for name in called]
    return [
        *(_line(f"patches: {name}", fits) for name, fits in by_process if fits),
        *(_line(f"calls: {name}", fits) for name, fits in by_package),
    ]


def _line(name: str, fits: list[Fit]) -> Check:
    broken = [fit for fit in fits if fit.fault and not fit.optional]
    lost = [fit for fit in fits if fit.fault and fit.optional]
    if broken:
        return fail(name, broken[0].fault or "", broken[0].remedy)
    if lost:
        return warn(name, f"skipped: {lost[0].fault}", lost[0].remedy)
    return ok(name, f"{len(fits)} fit: {', '.join(fit.name for fit in fits)}")
