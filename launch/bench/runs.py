"""Starts the one run of a benchmark, ``april train`` in the host's rollout-only mode, and follows it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.errors import AprilError
from april.launch import child
from april.launch.bench.settings import VARIABLE, Settings
from april.launch.quickstart import model_flags

LOOK_EVERY_S = 0.25
KV_TOKENS = 65536
"""Tokens that the engine's KV cache holds: never the limit here."""


@dataclass(frozen=True, slots=True)
class Job:
    """The run: the host, the model's folder, the prompt file, and the settings as they are and as a file."""

    host: str
    slime_dir: str | None
    run_dir: Path
    model: Path
    prompts: Path
    settings: Settings
    settings_file: Path

    def command(self) -> list[str]:
        """``april train`` with its flags."""
        tree = ["--slime-dir", self.slime_dir] if self.slime_dir else []
        ours = ["--host", self.host, *tree, "--run-dir", str(self.run_dir), "--quiet"]
        return [sys.executable, "-m", "april.launch.cli", "train", *ours, *self.flags()]

    def flags(self) -> list[str]:
        """The host's: one server, no trainer; each of its rollouts is a round of every mode."""
        settings = self.settings
        valued: Mapping[str, object] = {
            "--hf-checkpoint": self.model,
            "--prompt-data": self.prompts,
            "--input-key": "prompt",
            "--label-key": "label",
            "--custom-rm-path": "april.launch.bench.rollout.reward",
            "--rollout-function-path": "april.launch.bench.rollout.generate_rollout",
            "--data-source-path": "april.launch.bench.rollout.host_source",
            "--num-rollout": settings.cycles,
            "--rollout-batch-size": settings.batch,
            "--over-sampling-batch-size": settings.started,
            "--n-samples-per-prompt": settings.samples,
            "--global-batch-size": settings.batch * settings.samples,
            "--rollout-max-response-len": settings.max_len,
            "--rollout-temperature": 1.0,
            "--rollout-seed": settings.seed,
            "--seed": settings.seed + 1,
            "--april-staleness-cap": settings.cap,
            "--sglang-max-running-requests": settings.concurrency,
            "--sglang-max-total-tokens": KV_TOKENS,
            "--advantage-estimator": "grpo",
        }
        flags = [text for flag, value in valued.items() for text in (flag, str(value))]
        # april ranks its requests, resumed ones first; the host's carry no rank and stay in the order of their arrival.
        ranks = ["--sglang-enable-priority-scheduling", "--sglang-disable-priority-preemption"]
        return [*flags, *ranks, "--debug-rollout-only", *model_flags.from_folder(self.model)]


def run(job: Job) -> list[dict[str, Any]]:
    """Run to the end, with lines on stderr; returns the events of the run.

    Raises:
        AprilError: with the run's own reason when it fails.
    """
    reason = child.run(job.command(), functools.partial(_follow, job), {**os.environ, VARIABLE: str(job.settings_file)})
    if reason is not None:
        raise AprilError(reason)
    return events(job.run_dir)


def _follow(job: Job, process: subprocess.Popen[str]) -> None:
    """A line for each round until the process ends."""
    begun = time.monotonic()
    seen = 0
    print("april: bench: starting the server", file=sys.stderr)
    while process.poll() is None:
        time.sleep(LOOK_EVERY_S)
        found = events(job.run_dir)
        for event in found[seen:]:
            if text := _line(event, job.settings):
                print(f"april: bench: {time.monotonic() - begun:5.0f} s  {text}", file=sys.stderr)
        seen = len(found)


def _line(event: dict[str, Any], settings: Settings) -> str | None:
    if event["event"] == "ready":
        return "ready"
    if event["event"] != "bench_round":
        return None
    tokens, seconds = sum(tokens for _, tokens in event["trained"]), event["ended"] - event["started"]
    number = event["cycle"] - settings.warm_up + 1
    name = f"round {number}/{settings.rounds}" if number > 0 else "warm-up"
    return f"{name} {event['mode']}: {tokens} tokens trained in {seconds:.1f} s, {tokens / seconds:.0f}/s"


def events(run_dir: Path) -> list[dict[str, Any]]:
    """The events so far (a line that is still being written is left for the next look)."""
    path = run_dir / "events.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
