"""What preflight refuses, in one line, and what it lets through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from april.errors import UsageError
from april.launch.train import preflight


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    """Flags that are right."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "1+1?", "label": "2"}) + "\n")
    data = ["--prompt-data", str(tmp_path / "prompts.jsonl"), "--input-key", "prompt", "--label-key", "label"]
    return ["--hf-checkpoint", str(tmp_path), *data]


def test_good_flags_pass_and_the_last_one_counts(flags: list[str]) -> None:
    preflight.check(["--hf-checkpoint", "nowhere", *flags], "cpu")
    assert dict(preflight.values(["--a", "1", "--a=2"])) == {"--a": "2"}


def test_a_checkpoint_to_be_written_may_be_missing(flags: list[str]) -> None:
    preflight.check([*flags, "--load", "new", "--save", "new"], "cpu")
    with pytest.raises(UsageError, match="--load old: no such folder; to go on from a run name its checkpoints"):
        preflight.check([*flags, "--load", "old", "--save", "new"], "cpu")
    with pytest.raises(UsageError, match="--load old: no such folder"):
        preflight.check([*flags, "--load", "old"], "cpu")
    with pytest.raises(UsageError, match="--ref-load new: no such folder"):
        preflight.check([*flags, "--ref-load", "new"], "cpu")


def test_weights_are_missing(flags: list[str], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="no weights in it"):
        preflight.check(flags, "cpu")


def test_a_broken_config(flags: list[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"config\.json is no JSON"):
        preflight.check(flags, "cpu")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "it is empty"),
        ("not json\n", "its first line is no JSON"),
        ('{"prompt": "a"}\n', "its first line has no 'label'; --label-key may be prompt"),
        ('{"text": "a", "label": "b"}\n', "its first line has no 'prompt'; --input-key may be text, label"),
    ],
)
def test_bad_prompts(flags: list[str], tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "prompts.jsonl").write_text(content)
    with pytest.raises(UsageError, match=says):
        preflight.check(flags, "cpu")


def test_a_folder_of_prompts(flags: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        preflight.check([*flags, "--prompt-data", str(tmp_path)], "cpu")


def test_a_cluster_that_does_not_answer(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("127.0.0.1:1", "garbage"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UsageError, match=f"RAY_ADDRESS {address}: no Ray cluster answers"):
            preflight.check(flags, "cpu")
