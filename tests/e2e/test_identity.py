"""With ``--april off`` a run is the host's own, bit for bit: tokens, log probabilities, rewards and losses.

The engine takes one request at a time and decodes greedily, so that nothing depends on timing. The host's own run has
the host's rollout function and data source named by the host's flags: nothing of ours is called for a rollout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs import HOSTS, metrics, start

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

torch = pytest.importorskip("torch")
FLAGS = [
    *("--sglang-max-running-requests", "1", "--rollout-top-k", "1", "--rollout-max-response-len", "24"),
    *("--custom-rm-path", "index_reward.rm", "--over-sampling-batch-size", "4", "--num-rollout", "2"),
    *("--eval-interval", "2", "--lr-warmup-iters", "0", "--april", "off"),
]
LOSSES = ("train/loss", "train/grad_norm", "rollout/rewards", "train/train_rollout_logprob_abs_diff")


def run(folder: Path, host: str, flags: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a run generated and how it trained on it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    data = folder / "rollouts" / "{rollout_id}.pt"
    process = start(folder / "run", [*flags, "--save-debug-rollout-data", str(data)], host)
    error = process.communicate(timeout=280)[1]
    assert process.returncode == 0, error
    rollouts = [torch.load(str(data).format(rollout_id=number), weights_only=False)["samples"] for number in range(2)]
    fields = ("index", "tokens", "response_length", "rollout_log_probs", "reward", "status", "loss_mask")
    samples = [{name: sample[name] for name in fields} for rollout in rollouts for sample in rollout]
    return {"samples": samples, **{name: metrics(folder / "run", name) for name in LOSSES}}


@pytest.mark.parametrize("host", HOSTS)
def test_april_off_is_the_hosts_own_run(
    host: str, tmp_path: Path, train_flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = run(tmp_path / "ours", host, [*train_flags, *FLAGS], monkeypatch)
    own = ["--rollout-function-path", f"{host}.rollout.sglang_rollout.generate_rollout"]
    theirs = run(tmp_path / "theirs", host, [*train_flags, *FLAGS, *own], monkeypatch)
    assert len(ours["samples"]) == 2 * 16
    assert {sample["reward"] for sample in ours["samples"]} == {0.0, 1.0}
    assert any(ours["train/loss"]), "a loss of 0 would show nothing"
    assert len(ours["train/grad_norm"]) == 2
    assert ours == theirs
