"""Measures a colocated run on a CPU: resident memory of trainer and engine by phase, and what offloading changes.

``python -m april.launch.memory.colocated [--host HOST] [--steps N] [--compare] [--picture FILE.png]`` prints one JSON
object. ``--compare`` runs it again without offloading, and says whether tokens and losses are the same, bit for bit:
for that, requests come one at a time and are decoded greedily, so that nothing depends on timing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from april.errors import AprilError
from april.launch import child
from april.launch.memory import picture, server
from april.launch.quickstart import recipe, tasks
from april.patches import receipts
from april.patches.core import Process
from april.telemetry import events

SAMPLE_S = 0.01
WATCHED = {Process.SCHEDULER: "engine (scheduler)", Process.TRAIN_ACTOR: "trainer"}
STILL = ["--no-offload-train", "--no-offload-rollout"]
EXACT = [
    *("--april", "off", "--sglang-max-running-requests", "1", "--rollout-top-k", "1"),
    *("--over-sampling-batch-size", "4"),
]
LOSSES = ("train/loss", "train/grad_norm")
SAID = ("index", "tokens", "rollout_log_probs", "reward")


@dataclass(slots=True)
class Watch:
    """Resident bytes of each kind of process over time (unix s)."""

    run_dir: Path
    samples: dict[Process, list[tuple[float, int]]] = field(default_factory=dict)

    def follow(self, process: subprocess.Popen[str]) -> None:
        """Samples until the run ends."""
        found: dict[Process, psutil.Process] = {}
        while process.poll() is None:
            for receipt in receipts.read(self.run_dir) if len(found) < len(WATCHED) else []:
                if receipt.role in WATCHED and receipt.role not in found:
                    found[receipt.role] = psutil.Process(receipt.pid)
            for role, each in found.items():
                try:
                    self.samples.setdefault(role, []).append((time.time(), int(each.memory_info().rss)))
                except psutil.NoSuchProcess:
                    return
            time.sleep(SAMPLE_S)


def flags(folder: Path, steps: int, host: str) -> list[str]:
    """``april train`` of a policy made in ``folder``: 28M parameters, 24 KiB of cache a token."""
    model = server.policy(folder / "policy", hidden=768, ffn=2048)
    prompts, held_out = tasks.training_and_evaluation(256, 8, seed=0)
    tasks.write(prompts, folder / "prompts.jsonl")
    tasks.write(held_out, folder / "held-out.jsonl")
    small = replace(recipe.RECIPES["tiny"], groups=4, group_size=4, max_response=400)
    inputs = recipe.Inputs(model, folder / "prompts.jsonl", folder / "held-out.jsonl")
    theirs = recipe.train_flags(small, inputs, "april", steps, seed=0)
    at = theirs.index("--eval-interval")
    return ["--host", host, "--quiet", "--colocate", *theirs[:at], *theirs[at + 2 :]]


def train(given: list[str], run_dir: Path, watch: Watch | None = None) -> None:
    """Runs to the end; raises AprilError with the run's own reason where it fails."""
    data = run_dir.parent / f"{run_dir.name}-rollouts" / "{rollout_id}.pt"
    ours = ["--run-dir", str(run_dir), "--save-debug-rollout-data", str(data)]
    command = [sys.executable, "-m", "april.launch.cli", "train", *given, *ours]
    reason = child.run(command, watch.follow if watch else lambda process: None)
    if reason is not None:
        raise AprilError(reason)


def outcome(run_dir: Path, steps: int) -> dict[str, Any]:
    """What was generated and how it was trained on."""
    import torch

    files = [run_dir.parent / f"{run_dir.name}-rollouts" / f"{step}.pt" for step in range(steps)]
    samples = [sample for file in files for sample in torch.load(file, weights_only=False)["samples"]]
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {
        "samples": [{name: sample[name] for name in SAID} for sample in samples],
        **{name: [row[name] for row in rows if name in row] for name in LOSSES},
    }


def moves(run_dir: Path, role: Process) -> list[dict[str, Any]]:
    """What the saver of a kind of process did, in order."""
    pids = [receipt.pid for receipt in receipts.read(run_dir) if receipt.role is role]
    return [move for move in events.read(run_dir / events.FILE, "memory") if move["pid"] in pids]


def phases(run_dir: Path) -> list[tuple[float, str]]:
    """When each phase began: the engine gives its cache away, gets its weights back, gets its cache back."""
    named = {("pause", "kv_cache"): "training", ("resume", "weights"): "weights", ("resume", "kv_cache"): "rollout"}
    engine = moves(run_dir, Process.SCHEDULER)
    found = [(move["time"], named.get((move["operation"], move["tag"]))) for move in engine]
    return [(at, name) for at, name in found if name is not None]


def figures(run_dir: Path) -> dict[str, Any]:
    """What each pause gave back, in MiB: the region, and how far resident memory fell."""
    told = {}
    for role, name in WATCHED.items():
        pauses = [move for move in moves(run_dir, role) if move["operation"] == "pause" and move["bytes"]]
        told[name] = [
            {
                "tag": move["tag"] or "all",
                "region": round(move["bytes"] / (1 << 20), 1),
                "resident_fell": round((move["resident_before"] - move["resident"]) / (1 << 20), 1),
                "ms": round(1000 * move["seconds"], 1),
            }
            for move in pauses
        ]
    return told


def main(argv: list[str] | None = None) -> int:
    """Prints the figures; draws the picture where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="auto")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_dir = folder / "run"
        base = flags(folder, given.steps, given.host) + (EXACT if given.compare else [])
        watch = Watch(run_dir)
        train(base, run_dir, watch)
        found: dict[str, Any] = {"pauses": figures(run_dir)}
        if given.compare:
            train([*base, *STILL], folder / "still")
            found["same_tokens_and_losses"] = outcome(run_dir, given.steps) == outcome(folder / "still", given.steps)
        if given.picture:
            _draw(watch, given.picture)
    print(json.dumps(found, indent=1))
    return 0


def _draw(watch: Watch, path: Path) -> None:
    begun = phases(watch.run_dir)[1:]  # what comes before the first weights is the start of the trainer
    start, end = begun[0][0], begun[-1][0]
    lines = {
        WATCHED[role]: [(at - start, size) for at, size in samples if start <= at <= end]
        for role, samples in watch.samples.items()
    }
    title = "A colocated run on a CPU: trainer and engine release in turn"
    picture.draw(lines, [(at - start, name) for at, name in begun[:-1]], title, path)


if __name__ == "__main__":
    sys.exit(main())
