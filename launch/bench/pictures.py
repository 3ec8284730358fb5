"""The picture of a benchmark: how fast each mode trained, and where the time of one round went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from april.launch.bench.account import Round
    from april.launch.bench.report import Result
    from april.launch.bench.settings import Settings

COLOURS = {"trained": "#4878a8", "surplus": "#8ab17d", "partial": "#e0903c"}
LABELS = {"trained": "finished and trained", "surplus": "finished, kept for later", "partial": "unfinished, kept"}
MODE_COLOURS = {"sync": "#7a7a7a", "upstream-partial": "#b08f4f", "april": "#c0504d"}


def draw(result: Result, settings: Settings, out: Path) -> list[Path]:
    """Write ``rollout.png``; returns its path in a list."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(13, 2.9 * max(2, len(result.rounds))))
    grid = figure.add_gridspec(len(result.rounds), 2, width_ratios=(1, 2.6))
    _bars(figure.add_subplot(grid[:, 0]), result)
    shown = {mode: typical(rounds[settings.warm_up :]) for mode, rounds in result.rounds.items()}
    longest = max(this.seconds for this in shown.values())
    for row, (mode, this) in enumerate(shown.items()):
        axis = figure.add_subplot(grid[row, 1])
        _timeline(axis, this, settings)
        axis.set_xlim(0, longest * 1.02)
        axis.set_title(f"{mode}: a round of median length, {this.seconds:.1f} s", loc="left", fontsize=10)
    axis.set_xlabel("seconds from the start of the round")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    figure.legend(handles, LABELS.values(), loc="upper right", ncol=3, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    path = out / "rollout.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return [path]


def typical(rounds: list[Round]) -> Round:
    """The round of median length."""
    return sorted(rounds, key=lambda this: this.seconds)[len(rounds) // 2]


def _bars(axis: Any, result: Result) -> None:
    modes = list(result.tallies)
    rates = [tally.rate for tally in result.tallies.values()]
    bars = axis.bar(modes, rates, color=[MODE_COLOURS[mode] for mode in modes])
    for bar, tally in zip(bars, result.tallies.values(), strict=True):
        text = f"{tally.rate:.0f}\n{tally.bound_share:.2f} of the bound"
        axis.text(bar.get_x() + bar.get_width() / 2, bar.get_height(), text, ha="center", va="bottom", fontsize=9)
    axis.set_ylim(0, 1.18 * max(rates))
    axis.set_title("trained tokens per second", loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)


def _timeline(axis: Any, this: Round, settings: Settings) -> None:
    """One bar for each call, in order of its end. What waits in the server's queue is part of its bar."""
    calls = sorted(
        (call for call in this.calls if call.after > call.before), key=lambda call: (call.ended, call.started)
    )
    for row, call in enumerate(calls):
        ended = call.after >= settings.lengths[call.sample]
        kind = "trained" if call.sample in this.trained else "surplus" if ended else "partial"
        left, width = call.started - this.started, call.ended - call.started
        axis.barh(row, width, left=left, height=1.0, color=COLOURS[kind], linewidth=0)
    axis.set_ylabel("responses")
    axis.spines[["top", "right"]].set_visible(False)
