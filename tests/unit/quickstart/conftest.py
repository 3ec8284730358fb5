"""A Hugging Face config and run directories that several tests need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def qwen3() -> dict[str, Any]:
    """The tiny policy's config, as transformers 5 writes it."""
    return {
        "model_type": "qwen3",
        "num_hidden_layers": 4,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rms_norm_eps": 1e-6,
        "vocab_size": 32,
        "tie_word_embeddings": True,
    }


class RunDirectory:
    """Writes what a run of four steps leaves: a round takes 2 s, its training 1 s, the first starts after 10 s."""

    def __init__(self, path: Path, partial: bool) -> None:
        self.path = path
        self.partial = partial
        path.mkdir()
        self._event(1000.0, event="started")
        self._metric(1009.0, **{"eval/heldout": 0.5})
        for index in range(4):
            self._round(index, 1010.0 + 3 * index)
        self._metric(1024.0, **{"eval/heldout": 0.75})
        self._event(1025.0, event="finished")

    def _round(self, index: int, started: float) -> None:
        resumed = 6 if self.partial and index else 0
        outcomes = ["finished"] * 8 + (["partial"] * 6 + ["surplus"] * 2 if self.partial else [])
        spans = [
            {"group": at // 2, "sample": at, "start": started, "end": started + (at + 1) / 8, "outcome": outcome}
            for at, outcome in enumerate(outcomes)
        ]
        self._event(
            started + 2.0,
            event="round",
            rollout_id=index,
            started=started,
            ended=started + 2.0,
            trained_tokens=300,
            generated_tokens=400,
            wasted_tokens=5,
            partials_resumed=resumed,
            max_lag=min(index, 2) if self.partial else 0,
            off_policy_tokens=10 * resumed,
            reward_mean=0.4 + 0.1 * index,
            spans=spans,
        )
        difference = 0.002 + 0.001 * index
        self._metric(started + 3.0, **{"train/train_rollout_logprob_abs_diff": difference, "train/step": index})

    def _event(self, at: float, **fields: Any) -> None:
        self._append("events.jsonl", {"time": at, **fields})

    def _metric(self, at: float, **fields: Any) -> None:
        self._append("metrics.jsonl", {"time": at, **fields})

    def _append(self, name: str, record: dict[str, Any]) -> None:
        with (self.path / name).open("a") as file:
            file.write(json.dumps(record) + "\n")


@pytest.fixture
def sync_run(tmp_path: Path) -> Path:
    """The run directory of a synchronous run."""
    return RunDirectory(tmp_path / "sync", partial=False).path


@pytest.fixture
def april_run(tmp_path: Path) -> Path:
    """The run directory of a run with partials."""
    return RunDirectory(tmp_path / "april", partial=True).path


@pytest.fixture
def miles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like miles' unpacked wheel."""
    root = tmp_path / "miles"
    (root / "miles").mkdir(parents=True)
    (root / "miles" / "__init__.py").touch()
    monkeypatch.setenv("APRIL_MILES_DIR", str(root))
    return root
