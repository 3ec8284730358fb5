"""The picture of one run: its last rounds response by response, and its figures round by round."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from april.launch.quickstart.pictures import COLOURS, LABELS, SMOOTH, running_mean

if TYPE_CHECKING:
    from april.launch.train.report import Report

ROUNDS = 6
"""Rounds that the timeline shows: more would be too small to read."""
TRAINING = "#dddddd"
SERIES = "#4878a8"


def draw(made: Report, path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(12, 6.4))
    grid = figure.add_gridspec(2, 4, height_ratios=(1.6, 1))
    _timeline(figure.add_subplot(grid[0, :]), made)
    for column, (title, values) in enumerate(_series(made.rounds)):
        _plot(figure.add_subplot(grid[1, column]), title, values)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in (*COLOURS.values(), TRAINING)]
    figure.legend(handles, [*LABELS.values(), "training and weight sync"], loc="upper center", ncol=4, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _timeline(axis: Any, made: Report) -> None:
    """A bar for each leg of a response of the last rounds; seconds from the first of them."""
    shown = made.rounds[-ROUNDS:]
    origin = shown[0]["started"]
    for this in shown:
        _legs(axis, this, origin)
    ends = [*(after["started"] for after in shown[1:]), max(made.trained_until, shown[-1]["ended"])]
    for this, end in zip(shown, ends, strict=True):
        axis.axvspan(this["ended"] - origin, end - origin, color=TRAINING, zorder=0)
    axis.set_title(f"the last {len(shown)} of {made.steps} rollouts", loc="left", fontsize=10)
    axis.set_xlabel("seconds")
    axis.set_ylabel("responses, by start")
    axis.margins(x=0.01)


def _legs(axis: Any, this: dict[str, Any], origin: float) -> None:
    """One bar a span, in order of their starts; as one collection for each colour: thousands take no time to draw."""
    from matplotlib.collections import PolyCollection

    spans = sorted(this["spans"], key=lambda span: (span["start"], span["end"]))
    for outcome, colour in COLOURS.items():
        bars = [
            (span["start"] - origin, span["end"] - origin, row)
            for row, span in enumerate(spans)
            if span["outcome"] == outcome
        ]
        corners = [[(a, row - 0.5), (b, row - 0.5), (b, row + 0.5), (a, row + 0.5)] for a, b, row in bars]
        axis.add_collection(PolyCollection(corners, facecolors=colour, linewidths=0))
    axis.autoscale_view()


def _series(rounds: list[dict[str, Any]]) -> list[tuple[str, list[float | None]]]:
    return [
        ("mean reward", [this["reward_mean"] for this in rounds]),
        ("rollout, s", [this["ended"] - this["started"] for this in rounds]),
        ("off-policy share", [this["off_policy_tokens"] / max(1, this["trained_tokens"]) for this in rounds]),
        ("largest lag, versions", [this["max_lag"] for this in rounds]),
    ]


def _plot(axis: Any, title: str, values: list[float | None]) -> None:
    """One point a round, and a running mean."""
    from matplotlib.ticker import MaxNLocator

    known = [(step, value) for step, value in enumerate(values, 1) if value is not None]
    steps, numbers = [step for step, _ in known], [value for _, value in known]
    axis.plot(steps, numbers, ".", color=SERIES, alpha=0.4)
    axis.plot(steps, running_mean(numbers, SMOOTH), color=SERIES)
    axis.set_title(title, loc="left", fontsize=10)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylim(bottom=min([0, *numbers]))
    axis.spines[["top", "right"]].set_visible(False)
