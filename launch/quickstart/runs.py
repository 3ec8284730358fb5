"""Runs ``april train`` for one mode and shows how far it is."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.errors import AprilError
from april.launch import child
from april.launch.quickstart.recipe import Inputs, Recipe, train_flags

LOOK_EVERY_S = 0.25
APRIL = {"sync": "off", "april": "on"}


@dataclass(frozen=True, slots=True)
class Job:
    """One mode's run."""

    mode: str
    host: str
    slime_dir: str | None
    run_dir: Path
    recipe: Recipe
    inputs: Inputs
    steps: int
    seed: int
    more: tuple[str, ...] = ()
    """Flags of the host that come last and win."""

    def command(self) -> list[str]:
        """``april train`` with its flags."""
        tree = ["--slime-dir", self.slime_dir] if self.slime_dir else []
        ours = ["--host", self.host, *tree, "--april", APRIL[self.mode], "--run-dir", str(self.run_dir), "--quiet"]
        theirs = train_flags(self.recipe, self.inputs, self.mode, self.steps, self.seed)
        return [sys.executable, "-m", "april.launch.cli", "train", *ours, *theirs, *self.more]


def train(job: Job) -> Path:
    """Run to the end with a progress bar; returns the run directory.

    Raises:
        AprilError: with the run's own reason when it fails.
    """
    reason = child.run(job.command(), functools.partial(_follow, job))
    if reason is not None:
        raise AprilError(f"mode {job.mode}: {reason}")
    return job.run_dir


def _follow(job: Job, process: subprocess.Popen[str]) -> None:
    """Show the steps of a run until its process ends."""
    from tqdm import tqdm

    interval = 0.1 if sys.stderr.isatty() else 15.0
    with tqdm(total=job.steps, desc=f"{job.mode:5} starting", unit="step", mininterval=interval) as bar:
        seen = 0
        while process.poll() is None:
            time.sleep(LOOK_EVERY_S)
            rounds = rounds_of(job.run_dir)
            if len(rounds) > seen:
                bar.set_description(f"{job.mode:5} training", refresh=False)
                bar.set_postfix_str(_state(rounds), refresh=False)
                bar.update(len(rounds) - seen)
                seen = len(rounds)


def _state(rounds: list[dict[str, Any]]) -> str:
    recent = rounds[-4:]
    reward = sum(this["reward_mean"] for this in recent) / len(recent)
    resumed = sum(this["partials_resumed"] for this in rounds)
    return f"reward {reward:.2f}, {resumed} partials resumed"


def rounds_of(run_dir: Path) -> list[dict[str, Any]]:
    """The ``round`` events so far (a line that is still being written is left for the next look)."""
    path = run_dir / "events.jsonl"
    if not path.exists():
        return []
    lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [event for event in map(json.loads, lines) if event["event"] == "round"]
