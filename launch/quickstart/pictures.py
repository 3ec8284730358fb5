"""The pictures of a quick start: what ran when, and how the reward grew."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from april.launch.quickstart.report import Summary

COLOURS = {"finished": "#4878a8", "partial": "#e0903c", "surplus": "#8ab17d"}
LABELS = {
    "finished": "finished and trained",
    "partial": "unfinished, resumed later",
    "surplus": "finished, kept for later",
}
MODE_COLOURS = {"sync": "#7a7a7a", "april": "#c0504d"}
TIMELINE_ROUNDS = 8
"""Rounds that the timeline shows: more would be too small to read."""
SMOOTH = 5


def draw(results: dict[str, Summary], out: Path) -> list[Path]:
    """Write ``timeline.png`` and ``reward.png``; returns their paths."""
    import matplotlib

    matplotlib.use("Agg")
    return [_timeline(results, out / "timeline.png"), _reward(results, out / "reward.png")]


def _timeline(results: dict[str, Summary], path: Path) -> Path:
    """A bar for each leg of a response, one panel for each mode, on one time axis in seconds from the first round."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(results), 1, figsize=(12, 3.4 * len(results)), sharex=True, squeeze=False)
    for axis, (mode, run) in zip(axes[:, 0], results.items(), strict=True):
        shown = run.rounds[:TIMELINE_ROUNDS]
        origin = shown[0]["started"]
        for this in shown:
            _legs(axis, this, origin)
        ends = [after["started"] for after in run.rounds[1 : len(shown) + 1]]
        for this, end in zip(shown, [*ends, run.trained_until][: len(shown)], strict=True):
            axis.axvspan(this["ended"] - origin, end - origin, color="#dddddd", zorder=0)
        axis.set_title(
            f"{mode}: {len(shown)} rounds, {run.trained_tok_s:.0f} trained tokens/s in the whole run", loc="left"
        )
        axis.set_ylabel("responses, by start")
        axis.margins(x=0.01)
    axes[-1, 0].set_xlabel("seconds from the first rollout")
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[kind]) for kind in COLOURS]
    handles.append(plt.Rectangle((0, 0), 1, 1, color="#dddddd"))
    figure.legend(handles, [*LABELS.values(), "training and weight sync"], loc="upper center", ncol=4, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _legs(axis: Any, this: dict[str, Any], origin: float) -> None:
    spans = sorted(this["spans"], key=lambda span: (span["start"], span["end"]))
    for outcome, colour in COLOURS.items():
        rows = [(row, span) for row, span in enumerate(spans) if span["outcome"] == outcome]
        axis.barh(
            [row for row, _ in rows],
            [span["end"] - span["start"] for _, span in rows],
            left=[span["start"] - origin for _, span in rows],
            height=1.0,
            color=colour,
            linewidth=0,
        )


def _reward(results: dict[str, Summary], path: Path) -> Path:
    """Reward of the training rounds over steps and over wall time, a running mean of ``SMOOTH`` rounds in bold.

    The first rounds of april look better than its policy is: they train what finishes first, which is what is easy. The
    held-out prompts are judged alike.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, (by_step, by_time) = plt.subplots(1, 2, figsize=(12, 4.2), sharey=True)
    for mode, run in results.items():
        rewards = [this["reward_mean"] for this in run.rounds]
        steps = list(range(1, len(rewards) + 1))
        seconds = [this["ended"] - run.rounds[0]["started"] for this in run.rounds]
        for axis, x in ((by_step, steps), (by_time, seconds)):
            axis.plot(x, rewards, ".", color=MODE_COLOURS[mode], alpha=0.35)
            axis.plot(x, running_mean(rewards, SMOOTH), color=MODE_COLOURS[mode], linewidth=2, label=mode)
        for at, value in ((0, run.reward_first), (len(steps), run.reward_last)):
            if value is not None:
                by_step.plot([at], [value], "D", color=MODE_COLOURS[mode], markersize=7, markeredgecolor="black")
    by_step.set_xlabel("training step (diamonds: held-out prompts, before and after)")
    by_time.set_xlabel("seconds from the first rollout")
    by_step.set_ylabel("mean reward of the round")
    by_step.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_step.legend(frameon=False)
    for axis in (by_step, by_time):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def running_mean(values: list[float], width: int) -> list[float]:
    """Mean of each value and up to ``width - 1`` before it."""
    return [sum(values[max(0, i + 1 - width) : i + 1]) / min(width, i + 1) for i in range(len(values))]
