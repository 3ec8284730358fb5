"""Resident memory by phase, as a picture."""

from __future__ import annotations

from pathlib import Path

COLOURS = {"rollout": "#dfe9f3", "released": "#f6dede", "weights back": "#f7eeda", "all back, rollout": "#e3f0dd"}


def draw(samples: list[tuple[float, int]], phases: list[tuple[float, str]], path: Path) -> None:
    """A line of resident MiB over seconds, with a band for each phase; phases repeat from round to round."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(11, 3.6))
    axis.plot([at for at, _ in samples], [size / (1 << 20) for _, size in samples], color="#c0504d", linewidth=1.6)
    ends = [at for at, _ in phases[1:]] + [samples[-1][0]]
    top = max(size for _, size in samples) / (1 << 20)
    for number, ((begin, name), end) in enumerate(zip(phases, ends, strict=True)):
        axis.axvspan(begin, end, color=COLOURS[name], zorder=0)
        axis.text((begin + end) / 2, top * (1.04, 1.12)[number % 2], name, ha="center", fontsize=8)
    axis.set_ylim(0, top * 1.2)
    axis.set_xlim(0, samples[-1][0])
    axis.set_xlabel("seconds")
    axis.set_ylabel("resident MiB")
    axis.set_title("SGLang's scheduler on a CPU: two rounds of release and resume", loc="left", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
