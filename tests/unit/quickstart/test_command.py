"""``april quickstart``: bad input in one line, and what it makes of a run's end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from april.errors import AprilError
from april.launch import cli
from april.launch.quickstart import runs
from april.launch.quickstart.recipe import RECIPES, Inputs


@pytest.fixture
def full(tmp_path: Path) -> Path:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    return tmp_path / "full"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--model gpt5", "tiny or smollm2"),
        ("--host verl", "verl"),
        ("--modes sync,fast", "sync, april"),
        ("--modes sync,sync", "at most once"),
        ("--modes ", "--modes"),
        ("--steps 0", "--steps 0"),
        ("--steps many", "many"),
        ("--seed -1", "--seed -1"),
        ("--interleaved", "--interleaved"),
        ("--host miles --out {full}", "is not empty"),
        ("--host miles --out {full}/file", "--out"),
    ],
)
def test_bad_input(words: str, named: str, full: Path, miles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["quickstart", *words.format(full=full).split(" ")]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert len(said.splitlines()) == 1


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    started = time.monotonic()
    code = (
        "import sys; import april.launch.quickstart.main as main; "
        "sys.exit(bool({'torch', 'transformers', 'matplotlib', 'reasoning_gym'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert time.monotonic() - started < 5  # a fraction of a second on an idle machine


class Child(runs.Job):
    """A job whose command is a small program of its own."""

    program = ""

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.program]


def job(tmp_path: Path, program: str) -> Child:
    paths = [tmp_path / name for name in ("model", "prompts", "held-out")]
    made = Child("sync", "miles", None, tmp_path / "run", RECIPES["tiny"], Inputs(*paths), 3, 0)
    Child.program = program
    return made


def test_a_failed_run_gives_its_reason(tmp_path: Path) -> None:
    program = "import sys; print('april: error: the port is in use', file=sys.stderr); sys.exit(1)"
    with pytest.raises(AprilError, match="mode sync: the port is in use"):
        runs.train(job(tmp_path, program))


def test_an_interruption_ends_the_run_first(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    program = (
        "import os, pathlib, signal, sys, time\n"
        f"def end(*_): time.sleep(0.5); pathlib.Path({str(mark)!r}).touch(); sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(KeyboardInterrupt):
        runs.train(job(tmp_path, program))
    assert mark.exists()


def test_sigterm_is_an_interruption(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from april.launch.quickstart import main

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(main, "_quickstart", lambda argv: signal.raise_signal(signal.SIGTERM))
    try:
        assert main.run([]) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "interrupted" in capsys.readouterr().err
