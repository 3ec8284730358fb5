"""Does a policy learn as much with april as without? The quick start's tiny policy from several seeds, in both modes.

    python benchmarks/learning.py [--seeds 5] [--steps 24] [--eval-every 6] [--host auto] [--out DIR] [--json]

Both modes of a seed have the same policy, prompts, order and number of steps; which one goes first changes from seed to
seed. What counts is the held-out reward: 4 responses to each of 64 prompts that no training step sees. The rewards of
training rounds would flatter april, whose first rounds train what finishes first. Reported: the final reward of both
modes over the seeds, the 95% confidence interval of sync's mean (Student's t), and the seconds of all training steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.hosts.resolve import resolve
from april.launch import folders
from april.launch.quickstart import pictures, prepare, report, runs
from april.launch.quickstart.recipe import MODES, RECIPES

MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class Learned:
    """One run: held-out rewards after so many steps, at so many seconds from the first rollout, less evaluations."""

    steps: list[int]
    seconds: list[float]
    rewards: list[float]
    trained_tok_s: float


def main() -> None:
    """Run all, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=RECIPES[MODEL].steps)
    parser.add_argument("--eval-every", type=int, default=6, metavar="STEPS")
    parser.add_argument("--host", default="auto")
    parser.add_argument("--slime-dir")
    parser.add_argument("--out")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    out = folders.empty("--out", given.out, f"runs/learning-{time.strftime('%Y%m%d-%H%M%S')}")
    host = resolve(given.host, given.slime_dir, os.environ).name
    found: dict[str, list[Learned]] = {mode: [] for mode in MODES}
    for seed in range(given.seeds):
        folder = out / str(seed)
        folder.mkdir()
        inputs = prepare.inputs(MODEL, RECIPES[MODEL], seed, None, folder)
        for mode in MODES if seed % 2 == 0 else MODES[::-1]:
            more = ("--eval-interval", str(given.eval_every))
            job = runs.Job(mode, host, given.slime_dir, folder / mode, RECIPES[MODEL], inputs, given.steps, seed, more)
            runs.train(job)
            found[mode].append(read(job.run_dir, mode, given.steps, given.eval_every))
            print(f"seed {seed}, {mode}: {found[mode][-1]}", file=sys.stderr)
    body = summary(found)
    (out / "report.json").write_text(json.dumps(body, indent=1) + "\n")
    draw(found, out / "learning.png")
    print(json.dumps(body) if given.json else json.dumps(body, indent=1))


def read(run_dir: Path, mode: str, steps: int, every: int) -> Learned:
    """From what a run left behind."""
    summarized = report.summarize(run_dir, mode, steps)
    begins = [this["started"] for this in summarized.rounds]
    # A step lasts until its training ends; the evaluation that follows some of them is left out.
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    trained = [row["time"] for row in rows if report.LOGPROB_DIFFERENCE in row]
    lasted = [end - begin for begin, end in zip(begins, trained, strict=True)]
    seconds = [0.0, *itertools.accumulate(lasted)]
    after = [0, *(step for step in range(1, steps + 1) if step % every == 0)]
    rewards = [row[report.HELD_OUT] for row in rows if report.HELD_OUT in row]
    return Learned(after, [seconds[step] for step in after], rewards, summarized.trained_tok_s)


def summary(found: dict[str, list[Learned]]) -> dict[str, Any]:
    """Means over the seeds."""
    from scipy import stats

    last = {mode: [run.rewards[-1] for run in of_mode] for mode, of_mode in found.items()}
    sync = last["sync"]
    half = float(stats.t.ppf(0.975, len(sync) - 1)) * statistics.stdev(sync) / math.sqrt(len(sync)) if sync[1:] else 0.0
    mean = statistics.fmean(sync)
    pairs = list(zip(found["sync"], found["april"], strict=True))
    return {
        "first": {mode: [run.rewards[0] for run in of_mode] for mode, of_mode in found.items()},
        "last": last,
        "last_mean": {mode: statistics.fmean(rewards) for mode, rewards in last.items()},
        "sync_interval_95": [mean - half, mean + half],
        "seconds": {mode: [run.seconds[-1] for run in of_mode] for mode, of_mode in found.items()},
        "april_over_sync_speed": statistics.median(sync.seconds[-1] / ours.seconds[-1] for sync, ours in pairs),
        "trained_tok_s": {mode: [run.trained_tok_s for run in of_mode] for mode, of_mode in found.items()},
    }


def draw(found: dict[str, list[Learned]], path: Path) -> None:
    """Held-out reward over steps and over seconds: each seed thin, the mean over the seeds bold."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (by_step, by_time) = plt.subplots(1, 2, figsize=(12, 4.2), sharey=True)
    for mode, of_mode in found.items():
        colour = pictures.MODE_COLOURS[mode]
        for run in of_mode:
            by_step.plot(run.steps, run.rewards, color=colour, alpha=0.3, linewidth=1)
            by_time.plot(run.seconds, run.rewards, color=colour, alpha=0.3, linewidth=1)
        mean = [statistics.fmean(values) for values in zip(*(run.rewards for run in of_mode), strict=True)]
        seconds = [statistics.fmean(values) for values in zip(*(run.seconds for run in of_mode), strict=True)]
        by_step.plot(
            of_mode[0].steps, mean, "o-", color=colour, linewidth=2.5, label=f"{mode}, mean of {len(of_mode)} seeds"
        )
        by_time.plot(seconds, mean, "o-", color=colour, linewidth=2.5)
    by_step.set_xlabel("training step")
    by_time.set_xlabel("seconds of rollouts, training and weight sync")
    by_step.set_ylabel("held-out reward")
    by_step.legend(frameon=False)
    for axis in (by_step, by_time):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
