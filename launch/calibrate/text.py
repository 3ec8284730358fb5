"""Figures as lines of text."""

from __future__ import annotations

from typing import Any


def figures(title: str, found: dict[str, Any]) -> str:
    """One table for all rows and one without the starved ones, in per cent."""
    lines = [title, *_table(found)]
    starved = found.get("starved", [])
    if starved:
        lines += [f"without {len(starved)} starved rows (fewer requests ran than the row says):"]
        lines += _table(found["without_starved"])
    return "\n".join(lines)


def starved_rows(found: dict[str, Any]) -> str:
    """The starved rows, a line each."""
    lines = [
        f"  row {r['row']:>4}  {r['mode']:<14} B {r['batch']:>3}  S {r['seq']:>5}  gamma {r['gamma']:>2}  measured "
        f"{r['measured_ms']:7.2f} ms, the line in S says {r['expected_ms']:7.2f}; {r['steps_kept']:.0%} of the steps"
        for r in found["starved"]
    ]
    return "\n".join(["starved rows:", *lines]) if lines else "no starved rows"


def _table(found: dict[str, Any]) -> list[str]:
    gammas = list(found["cycle_mape"])
    head = "  gamma     " + "".join(f"{g:>8}" for g in gammas)
    names = {"t_d_mape": "T_D", "t_v_mape": "T_V", "cycle_mape": "cycle"}
    rows = [f"  {name:<10}" + "".join(f"{_percent(found[key][g]):>8}" for g in gammas) for key, name in names.items()]
    sign = f"  T_T {_percent(found['t_t_mape'])}; sign of the speedup right in {_percent(found['sign_accuracy'])} of "
    return [head, *rows, sign + f"{found['points']} points"]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
