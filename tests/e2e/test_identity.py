"""With ``--april off`` a run is the host's own, bit for bit: tokens, log probabilities, rewards and losses.

The engine takes one request at a time and decodes greedily, so that nothing depends on timing. The host's own run has
the host's rollout function and data source named by the host's flags: nothing of ours is called for a rollout.

A run that goes on from a checkpoint is the run that was not interrupted, bit for bit: weights, the optimizer's state,
and the place in the data come back whole.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runs import HOSTS, metrics, start

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

torch = pytest.importorskip("torch")
FLAGS = [
    *("--sglang-max-running-requests", "1", "--rollout-top-k", "1", "--rollout-max-response-len", "24"),
    *("--custom-rm-path", "index_reward.rm", "--over-sampling-batch-size", "4", "--num-rollout", "2"),
    *("--eval-interval", "2", "--eval-max-response-len", "24", "--lr-warmup-iters", "0", "--april", "off"),
]
LOSSES = ("train/loss", "train/grad_norm", "rollout/rewards", "train/train_rollout_logprob_abs_diff")


def run(folder: Path, host: str, flags: list[str], steps: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    """What a run generated and how it trained on it."""
    data = folder / "rollouts" / "{rollout_id}.pt"
    process = start(folder / "run", [*flags, "--save-debug-rollout-data", str(data)], host)
    error = process.communicate(timeout=280)[1]
    assert process.returncode == 0, error
    rollouts = [torch.load(str(data).format(rollout_id=number), weights_only=False)["samples"] for number in steps]
    fields = ("index", "tokens", "response_length", "rollout_log_probs", "reward", "status", "loss_mask")
    samples = [[{name: sample[name] for name in fields} for sample in rollout] for rollout in rollouts]
    return {"samples": samples, **{name: metrics(folder / "run", name) for name in LOSSES}}


@dataclass
class Whole:
    """A run with ``--april off`` from its first step to its last, and its checkpoints."""

    host: str
    flags: list[str]
    saved: Path
    made: dict[str, Any]


@pytest.fixture(scope="module", params=HOSTS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, train_flags: list[str]) -> Any:
    folder, flags = tmp_path_factory.mktemp("whole"), [*train_flags, *FLAGS]
    saving = ["--save", str(folder / "checkpoints"), "--save-interval", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        made = run(folder, request.param, [*flags, *saving])
        yield Whole(request.param, flags, folder / "checkpoints", made)


def test_april_off_is_the_hosts_own_run(whole: Whole, tmp_path: Path) -> None:
    own = ["--rollout-function-path", f"{whole.host}.rollout.sglang_rollout.generate_rollout"]
    theirs = run(tmp_path, whole.host, [*whole.flags, *own])
    assert [len(rollout) for rollout in theirs["samples"]] == [16, 16]
    assert {sample["reward"] for rollout in theirs["samples"] for sample in rollout} == {0.0, 1.0}
    assert any(theirs["train/loss"]), "a loss of 0 would show nothing"
    assert len(theirs["train/grad_norm"]) == 2
    assert theirs == whole.made


def test_a_resumed_run_is_the_run_that_was_not_interrupted(whole: Whole, tmp_path: Path) -> None:
    first_only = tmp_path / "checkpoints"
    shutil.copytree(whole.saved, first_only)
    for later in (first_only / "iter_0000001", *first_only.glob("rollout/*_1.*")):
        shutil.rmtree(later) if later.is_dir() else later.unlink()
    (first_only / "latest_checkpointed_iteration.txt").write_text("0")
    resumed = run(tmp_path, whole.host, [*whole.flags, "--load", str(first_only)], steps=(1,))
    assert resumed["samples"] == whole.made["samples"][1:]
    assert resumed["train/loss"] == whole.made["train/loss"][1:]
    assert resumed["train/grad_norm"] == whole.made["train/grad_norm"][1:]
