"""Resident memory by phase, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = {
    "rollout": "#dfe9f3",
    "released": "#f6dede",
    "weights back": "#f7eeda",
    "all back, rollout": "#e3f0dd",
    "training": "#f6dede",
    "weights": "#f7eeda",
}
LINES = ("#c0504d", "#1f4e79")

Samples = Sequence[tuple[float, int]]


def draw(lines: Mapping[str, Samples], phases: Sequence[tuple[float, str]], title: str, path: Path) -> None:
    """A line of resident MiB over seconds for each process, with a band for each phase; phases repeat."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(11, 3.6))
    for (name, samples), colour in zip(lines.items(), LINES, strict=False):
        axis.plot([at for at, _ in samples], [size / (1 << 20) for _, size in samples], color=colour, label=name)
    end = max(samples[-1][0] for samples in lines.values())
    top = max(size for samples in lines.values() for _, size in samples) / (1 << 20)
    ends = [at for at, _ in phases[1:]] + [end]
    for number, ((begin, name), until) in enumerate(zip(phases, ends, strict=True)):
        axis.axvspan(begin, until, color=COLOURS[name], zorder=0)
        axis.text((begin + until) / 2, top * (1.04, 1.12)[number % 2], name, ha="center", fontsize=8)
    axis.set_ylim(0, top * 1.2)
    axis.set_xlim(phases[0][0], end)
    axis.set_xlabel("seconds")
    axis.set_ylabel("resident MiB")
    axis.set_title(title, loc="left", fontsize=10)
    if len(lines) > 1:
        axis.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
