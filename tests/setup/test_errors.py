"""One clear line for each thing that can be missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from april.launch.environment import interpreter, paths, preflight
from april.launch.environment.commands import Runner, explain, last_words
from april.launch.environment.errors import SetupError
from april.launch.environment.progress import Progress

REFUSED = (
    "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'ProxyError(...)'\nERROR: No matching"
)


def python(folder: Path, name: str, version: str, venv: bool = True) -> str:
    """A fake interpreter that answers the version question."""
    program = folder / name
    answer = f"echo {version}" if venv else f'case "$2" in *venv*) exit 1;; *) echo {version};; esac'
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    return str(program)


def test_the_first_fitting_python_is_taken(tmp_path: Path) -> None:
    programs = [python(tmp_path, "a", "3.12.1"), python(tmp_path, "b", "3.11.9"), python(tmp_path, "c", "3.11.2")]
    assert interpreter.find(programs) == (programs[1], "3.11.9")


def test_the_wrong_pythons_are_named(tmp_path: Path) -> None:
    programs = [python(tmp_path, "a", "3.12.1"), python(tmp_path, "b", "3.11.2", venv=False), str(tmp_path / "none")]
    with pytest.raises(SetupError) as caught:
        interpreter.find(programs)
    message = str(caught.value)
    assert message.startswith("Python 3.11 is needed")
    assert f"3.12.1 ({programs[0]})" in message
    assert "lacks the modules venv and ensurepip" in message
    assert "\n" not in message


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=3 * preflight.GIB))
    preflight.check_disk(tmp_path, 2.5)
    with pytest.raises(SetupError, match=r"not enough room: 3\.0 GiB are free on .*, set-up needs 8\.0 GiB"):
        preflight.check_disk(tmp_path, 8)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="install gcc"):
        preflight.check_compiler()


def test_another_platform() -> None:
    preflight.check_platform("Linux", "x86_64")
    with pytest.raises(SetupError, match="this is Darwin on arm64"):
        preflight.check_platform("Darwin", "arm64")


def test_no_right_to_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    preflight.check_writable(tmp_path)
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    with pytest.raises(SetupError, match="no permission to write in"):
        preflight.check_writable(tmp_path)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (REFUSED, "the package index cannot be reached"),
        ("error: Failed to fetch: `https://.../six/`\n  Caused by: dns error", "the package index cannot be reached"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "does not have the hash"),
        ("error: Hash mismatch for `six==1.17.0`", "does not have the hash"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("error: externally-managed-environment", "PYTHON=..."),
        ("ERROR: [Errno 13] Permission denied: '/opt/x'", "may not be written"),
        ("error: command '/usr/bin/gcc' failed with exit code 1", "could not be compiled"),
        ("error: [Errno 2] No such file or directory: 'x86_64-linux-gnu-gcc'", "could not be compiled"),
    ],
)
def test_the_cause_of_a_failed_installer(output: str, expected: str) -> None:
    cause = explain(output, {})
    assert cause is not None
    assert expected in cause
    assert "\n" not in cause


def test_the_settings_of_the_network_are_named_without_passwords() -> None:
    cause = explain(REFUSED, {"HTTPS_PROXY": "http://me:secret@127.0.0.1:9", "PIP_INDEX_URL": "http://mirror/simple"})
    assert cause is not None
    assert "HTTPS_PROXY=http://***@127.0.0.1:9, PIP_INDEX_URL=http://mirror/simple" in cause
    assert "secret" not in cause


def test_an_unknown_cause_is_told_in_the_installers_words() -> None:
    assert explain("ERROR: something new", {}) is None
    assert (
        last_words("WARNING: Location 'x' is ignored\nERROR: something new\nnote: see above\n")
        == "ERROR: something new"
    )
    assert last_words("\n") == "it said nothing"


def test_a_failed_program_is_logged_and_its_log_is_named(tmp_path: Path, progress: Progress) -> None:
    runner = Runner(tmp_path / "logs" / "setup.log", progress, os.environ)
    assert runner.run([sys.executable, "-c", "print('fine')"], "trying").endswith("fine\n")
    with pytest.raises(SetupError) as caught:
        runner.run([sys.executable, "-c", "print('WARNING: Location x'); raise SystemExit('error: odd')"], "trying")
    assert str(caught.value).startswith("trying failed: error: odd (full log: ")
    assert str(caught.value).endswith("setup.log)")
    assert "WARNING: Location x" in runner.log.read_text()


def test_progress_is_shown_on_a_terminal_without_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    progress = SimpleNamespace(update=shown.append)
    runner = Runner(tmp_path / "setup.log", progress, os.environ)  # type: ignore[arg-type]
    monkeypatch.setattr("april.launch.environment.commands.POLL", 0.02)
    script = "import time; print('Installing torch\\nWARNING: Location y', flush=True); time.sleep(0.5)"
    runner.run([sys.executable, "-c", script], "trying")
    assert "Installing torch" in shown
    assert not any("Location" in line for line in shown)


def test_where_miles_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APRIL_MILES_DIR", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert paths.miles_root() is None
    tree = tmp_path / "share" / "april" / "miles-0.0.2"
    tree.mkdir(parents=True)
    assert paths.miles_root() is None, "a tree without its mark is not whole"
    (tree / ".complete").touch()
    assert paths.miles_root() == tree
    monkeypatch.setenv("APRIL_MILES_DIR", "/elsewhere")
    assert paths.miles_root() == Path("/elsewhere")
