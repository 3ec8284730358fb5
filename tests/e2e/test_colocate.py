"""A colocated run on a CPU: trainer and engine give their memory back in turn, and everything else stays the same."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from runs import HOSTS, events, left_running, metrics, start, wait_for
from test_identity import FLAGS, LOSSES

from april.patches import receipts
from april.patches.core import Process

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

torch = pytest.importorskip("torch")
STEPS = 2
OPTIMIZER_BYTES = 2 + 4 + 4 + 4 + 4
"""Of a parameter: bfloat16, and in float32 its gradient, main copy, and Adam's two moments."""


def launched(folder: Path, host: str, flags: list[str]) -> subprocess.Popen[str]:
    """A run that keeps what was generated."""
    data = folder / "rollouts" / "{rollout_id}.pt"
    no_eval = ["--eval-interval", "100", "--skip-eval-before-train"]
    ours = ["--colocate", *no_eval, "--save-debug-rollout-data", str(data)]
    return start(folder / "run", [*flags, *FLAGS, *ours], host)


def outcome(folder: Path, process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a run generated and how it trained on it."""
    error = process.communicate(timeout=280)[1]
    assert process.returncode == 0, error
    assert left_running(folder / "run") == []
    found = [torch.load(folder / "rollouts" / f"{step}.pt", weights_only=False)["samples"] for step in range(STEPS)]
    fields = ("index", "tokens", "response_length", "rollout_log_probs", "reward", "loss_mask")
    samples = [{name: sample[name] for name in fields} for rollout in found for sample in rollout]
    return {"samples": samples, **{name: metrics(folder / "run", name) for name in LOSSES}}


def pauses(run_dir: Path, role: Process) -> list[dict[str, Any]]:
    """What a kind of process released, in order."""
    pids = [receipt.pid for receipt in receipts.read(run_dir) if receipt.role is role]
    return [event for event in events(run_dir, "memory") if event["pid"] in pids and event["operation"] == "pause"]


@pytest.mark.parametrize("host", HOSTS)
def test_offload_changes_memory_and_nothing_else(
    host: str, tmp_path: Path, train_flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    folders = tmp_path / "with", tmp_path / "without"
    first = launched(folders[0], host, train_flags)
    wait_for(folders[0] / "run", "ready", first)  # it has its ports: the hosts' runs that start at once take the same
    second = launched(folders[1], host, [*train_flags, "--no-offload-train", "--no-offload-rollout"])
    offloaded, resident = outcome(folders[0], first), outcome(folders[1], second)
    assert len(offloaded["samples"]) == STEPS * 16
    assert any(offloaded["train/loss"]), "a loss of 0 would show nothing"
    assert offloaded == resident

    assert events(folders[1] / "run", "memory") == []
    weights = Path(train_flags[train_flags.index("--hf-checkpoint") + 1]) / "model.safetensors"
    parameters = weights.stat().st_size / 4  # float32
    trained = pauses(folders[0] / "run", Process.TRAIN_ACTOR)[1:]  # the first is before the optimizer has a state
    assert len(trained) == STEPS
    for pause in trained:
        assert pause["bytes"] >= OPTIMIZER_BYTES * parameters
        assert pause["resident_before"] - pause["resident"] >= 0.9 * OPTIMIZER_BYTES * parameters
    served = pauses(folders[0] / "run", Process.SCHEDULER)
    assert [pause["tag"] for pause in served] == ["kv_cache", "weights", "cuda_graph"] * (STEPS + 1)
    assert metrics(folders[0] / "run", "memory/default/backup")[-1] > 0
