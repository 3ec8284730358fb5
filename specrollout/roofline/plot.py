"""Pictures of a calibration: measured and predicted times, and where speculation pays. Imports matplotlib late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from specrollout.roofline.model import LatencyModel, boundary_batch, cycle_time, speedup
from specrollout.roofline.starved import starved_rows
from specrollout.roofline.sweep import DRAFTER, TARGET, VERIFY, Sweep

CONTEXTS = (256, 1024, 4096)


def plot(model: LatencyModel, sweep: Sweep | None, accepted: float | None, path: Path) -> None:
    """Write a PNG: with a sweep, its times and speedups against the model's; without, speedup and boundary."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(12, 9), constrained_layout=True)
    if sweep is None:
        figure.delaxes(axes[0][0])
        figure.delaxes(axes[0][1])
    else:
        _times(axes[0][0], model, sweep)
        _agreement(axes[0][1], model, sweep)
    _speedups(axes[1][0], model, sweep, accepted)
    _boundary(axes[1][1], model, accepted)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _times(axis: Any, model: LatencyModel, sweep: Sweep) -> None:
    gamma = sweep.gammas[len(sweep.gammas) // 2]
    context = sorted({row.context for row in sweep.rows})[len({row.context for row in sweep.rows}) // 2]
    batches = np.arange(1.0, max(row.batch for row in sweep.rows) + 1)
    lines = {
        TARGET: ("T_T", model.t_target(batches, context)),
        DRAFTER: ("T_D", model.t_drafter(batches, context, gamma)),
        VERIFY: ("T_V", model.t_verify(batches, context, gamma)),
    }
    for color, (mode, (name, seconds)) in enumerate(lines.items()):
        rows = [r for r in sweep.rows if r.mode == mode and r.context == context and r.gamma in (0, gamma)]
        axis.plot(batches, 1e3 * seconds, color=f"C{color}", label=f"{name}, model")
        axis.plot(
            [r.batch for r in rows], [1e3 * r.seconds for r in rows], "o", color=f"C{color}", label=f"{name}, measured"
        )
    axis.set(
        title=f"Times of a pass, S = {context}, gamma = {gamma}", xlabel="B (requests)", ylabel="ms", ylim=(0, None)
    )
    axis.legend()


def _agreement(axis: Any, model: LatencyModel, sweep: Sweep) -> None:
    lines = {found.row.line for found in starved_rows(sweep)}
    starved = {(r.batch, r.context, r.gamma) for r in sweep.rows if r.line in lines}
    for color, gamma in enumerate(sweep.gammas):
        cycle = sweep.cycles(gamma)
        predicted = cycle_time(model, cycle.batch, cycle.context, gamma)
        sound = np.array(
            [(int(b), int(s), gamma) not in starved for b, s in zip(cycle.batch, cycle.context, strict=True)]
        )
        error = 100 * (predicted / cycle.seconds - 1)
        axis.plot(1e3 * cycle.seconds[sound], error[sound], "o", ms=4, color=f"C{color}", label=f"gamma {gamma}")
        axis.plot(1e3 * cycle.seconds[~sound], error[~sound], "x", ms=5, color=f"C{color}")
    axis.axhspan(-3, 3, color="0.9", zorder=0)
    axis.set(title="Cycle: predicted over measured (x: starved row)", xlabel="measured cycle (ms)", ylabel="error (%)")
    axis.set(xscale="log", ylim=(-15, 60))
    axis.legend()


def _speedups(axis: Any, model: LatencyModel, sweep: Sweep | None, accepted: float | None) -> None:
    top = max(row.batch for row in sweep.rows) if sweep else 128
    gammas = sweep.gammas if sweep else [7]
    gamma = gammas[0] if accepted is None else min(gammas, key=lambda g: abs(g - accepted))
    gained = float(gamma) if accepted is None else accepted
    batches = np.arange(1.0, top + 1)
    for color, context in enumerate(CONTEXTS):
        axis.plot(
            batches, speedup(model, batches, context, gamma, gained), color=f"C{color}", label=f"S = {context}, model"
        )
        if sweep is not None:
            cycle = sweep.cycles(gamma)
            here = cycle.context == context
            measured = gained * cycle.t_target[here] / cycle.seconds[here]
            axis.plot(cycle.batch[here], measured, "o", color=f"C{color}")
    axis.axhline(1.0, color="0.5", lw=1)
    axis.set(title=f"Speedup, gamma = {gamma}, L = {gained:g}", xlabel="B (requests)", ylabel="speedup")
    axis.legend()


def _boundary(axis: Any, model: LatencyModel, accepted: float | None) -> None:
    contexts = np.unique(np.geomspace(256, 32768, 25).astype(int))
    for gamma in (3, 5, 7, 11):
        gained = float(gamma) if accepted is None else min(accepted, gamma + 1.0)
        limits = [boundary_batch(model, float(s), gamma, gained, limit=256.0) for s in contexts]
        axis.plot(contexts, limits, label=f"gamma {gamma}, L = {gained:g}")
    axis.set(title="Largest B with a speedup of 1.05", xlabel="S (tokens)", ylabel="B (requests)", xscale="log")
    axis.legend()
