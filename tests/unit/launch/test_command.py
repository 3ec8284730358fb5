"""``april train``: what is wrong is said in one line, before anything starts."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from april.errors import UsageError
from april.hosts.miles import Miles
from april.launch import cli, folders
from april.launch.train import command, flags, preflight


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture
def miles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "miles"
    (root / "miles").mkdir(parents=True)
    (root / "miles" / "__init__.py").touch()
    (root / "miles_rl-0.0.2.dist-info").mkdir()
    monkeypatch.setenv("APRIL_MILES_DIR", str(root))
    return root


def test_the_users_flags_come_last_and_win(miles: Path) -> None:
    given = command.host_flags(Miles(miles, "0.0.2"), "cpu", "on", ["--max-tokens-per-gpu", "99"])
    assert dict(preflight.values(given))["--max-tokens-per-gpu"] == "99"
    assert dict(preflight.values(given))["--rollout-function-path"] == "april.rollout.generate_rollout"


def test_a_gpu_gets_no_flags_of_the_cpu_host(miles: Path) -> None:
    assert command.host_flags(Miles(miles, "0.0.2"), "cuda", "on", ["--lr", "1"]) == [
        *command.ROLLOUT["on"],
        "--lr",
        "1",
    ]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--host", "verl"], "unknown host 'verl'"),
        (["--host", "miles"], "--hf-checkpoint is missing"),
        (["--host", "miles", "--hf-checkpoint", "nowhere"], "--hf-checkpoint nowhere: no such folder"),
        (["--host", "miles", "--hf-checkpoint", "."], "no config.json"),
        (["--host", "slime", "--slime-dir", "."], "is no slime tree"),
        (["--host", "miles", "--async"], "miles' wheel carries no asynchronous training loop"),
        (["--host", "miles", "--device", "cuda"], "this machine has none"),
        (["--host", "miles", "--device", "cpu", "--nodes", "0"], "--nodes 0: at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    argv: list[str],
    says: str,
    miles: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "cuda" in argv and preflight.device("auto") == "cuda":
        pytest.skip("this machine has a GPU")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *argv]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_port_in_use(model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(UsageError, match=f"--sglang-router-port {port}: the port is in use"):
            preflight.check(["--hf-checkpoint", str(model), "--sglang-router-port", port], "cpu")


def test_a_run_directory_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(UsageError, match="is not empty"):
        folders.empty("--run-dir", str(tmp_path), "unused")


def test_another_version_of_slime_is_named(
    tmp_path: Path, model: Path, miles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slime" / "ray").mkdir(parents=True)
    (tmp_path / "slime" / "ray" / "rollout.py").touch()
    (tmp_path / "train.py").write_text("print('another')")
    (tmp_path / "setup.py").write_text('setup(name="slime", version="9.9")')
    monkeypatch.setenv("SLIME_DIR", str(tmp_path))
    monkeypatch.setenv("APRIL_MILES_DIR", str(miles))
    with pytest.raises(UsageError, match=r"slime 9\.9 has no slime\.utils\.accelerator:.*Use slime"):
        command.run(["--host", "slime", "--device", "cpu", "--hf-checkpoint", str(model)])
    assert not (tmp_path / "runs").exists()


def test_unknown_flags_are_found_in_every_pass_of_the_parser() -> None:
    import argparse

    with flags._registered_flags() as known:
        first = argparse.ArgumentParser(add_help=False)
        first.add_argument("--alpha-size")
        argparse.ArgumentParser(add_help=False).add_argument_group("g").add_argument("--beta")
    assert {"--alpha-size", "--beta"} <= known
    assert flags._unknown(["--alpha-size=3", "--beta", "-1", "--alpha-sze", "4"], known) == [
        "unknown flag --alpha-sze (did you mean --alpha-size?)"
    ]


def test_help_is_quick() -> None:
    for words in ([], ["train"], ["quickstart"], ["patch"], ["patch", "check"], ["doctor"]):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "april.launch.cli", *words, "--help"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "usage: april" in done.stdout
        assert time.perf_counter() - start < 1.0
