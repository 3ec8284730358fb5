"""``april bench``: bad input in one line, a quick help, and what it makes of a run's end."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from april.errors import AprilError, UsageError
from april.launch import child, cli
from april.launch.bench import main, runs
from april.launch.bench.settings import Settings


@pytest.fixture
def full(tmp_path: Path) -> Path:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    return tmp_path / "full"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "rollout"),
        ("decode", "decode"),
        ("rollout --modes sync,fast", "upstream-partial"),
        ("rollout --modes ", "--modes"),
        ("rollout --rounds 0", "--rounds 0"),
        ("rollout --rounds many", "many"),
        ("rollout --over-sampling 0.5", "--over-sampling"),
        ("rollout --model gpt5", "smollm2 or tiny"),
        ("rollout --host verl", "verl"),
        ("rollout --lengths {full}/none.json", "none.json"),
        ("rollout --lengths {full}/file", "--lengths"),
        ("rollout --sideways", "--sideways"),
        ("rollout --host miles --out {full}", "is not empty"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    words: str, named: str, full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [word.format(full=full) for word in words.split(" ")] if words else []
    assert cli.main(["bench", *argv]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("april: error: ")
    assert error.count("\n") == 1
    assert named in error


def test_help_is_quick() -> None:
    started = time.monotonic()
    command = [sys.executable, "-m", "april.launch.cli", "bench", "rollout", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert "--over-sampling" in done.stdout
    assert time.monotonic() - started < 5


def test_the_longest_response_must_fit_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1024}')
    main.check_fits(tmp_path, 992)
    with pytest.raises(UsageError, match="--max-len 993: the model has 1024 positions, so at most 992"):
        main.check_fits(tmp_path, 993)


def test_each_model_has_its_longest_response() -> None:
    flags = main.parser().parse_args(["rollout", "--model", "tiny"])
    assert main.settings_of(flags).max_len == 960
    flags = main.parser().parse_args(["rollout", "--max-len", "300"])
    assert main.settings_of(flags).max_len == 300


@pytest.fixture
def job(tmp_path: Path) -> runs.Job:
    model = {
        **{
            "model_type": "llama",
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "vocab_size": 256,
        },
        **{"intermediate_size": 128, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e4},
    }
    (tmp_path / "config.json").write_text(json.dumps(model))
    settings = Settings(rounds=3, batch=5, samples=2)
    return runs.Job(
        "slime", "/tree", tmp_path / "run", tmp_path, tmp_path / "prompts.jsonl", settings, tmp_path / "s.json"
    )


def test_the_run_has_one_server_and_no_trainer(job: runs.Job) -> None:
    command = job.command()
    given = dict(itertools.pairwise(command))
    assert given["--slime-dir"] == "/tree"
    assert given["--rollout-function-path"] == "april.launch.bench.rollout.generate_rollout"
    assert (given["--num-rollout"], given["--rollout-batch-size"], given["--global-batch-size"]) == ("4", "5", "10")
    assert "--debug-rollout-only" in command


class Ended:
    """A process that said something and ended."""

    def __init__(self, code: int, said: str) -> None:
        self.returncode, self.said = code, said

    def poll(self) -> int:
        return self.returncode

    def communicate(self) -> tuple[None, str]:
        return None, self.said


@pytest.mark.parametrize(
    ("said", "told"), [("x\napril: error: no port\n", "no port"), ("Killed", "it ended with code 1")]
)
def test_a_run_that_fails_tells_why(job: runs.Job, monkeypatch: pytest.MonkeyPatch, said: str, told: str) -> None:
    monkeypatch.setattr(child.subprocess, "Popen", lambda *args, **options: Ended(1, said))
    with pytest.raises(AprilError, match=told):
        runs.run(job)


def test_events_that_are_still_being_written_wait(tmp_path: Path) -> None:
    assert runs.events(tmp_path) == []
    (tmp_path / "events.jsonl").write_text('{"event": "ready"}\n{"event": "bench_ro')
    assert runs.events(tmp_path) == [{"event": "ready"}]
