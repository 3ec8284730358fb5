"""On a GPU machine nothing of the user's is touched: shown on a real environment that holds a fake stack."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import setuptools

from april.launch.doctor.facts import NEEDED
from april.launch.environment import overlay as overlay_module
from april.launch.environment.errors import SetupError
from april.launch.environment.lockfiles import read_lock
from april.launch.environment.overlay import Overlay

if TYPE_CHECKING:
    from conftest import NotedCommands

STACK = {
    "torch": "2.9.1+cu129",
    "sglang": "0.5.15.post1",
    "slime": "0.3.1",
    "packaging": "25.0",
    "pyyaml": "6.0.2",
    "wrapt": "1.17.3",
    "psutil": "7.1.0",
}


def add_fake(site: Path, name: str, version: str) -> None:
    """A distribution with metadata, one file and no code that could run."""
    (site / name).mkdir()
    (site / name / "version.py").write_text(f"__version__ = '{version}'\ncuda: str = '12.9'\nhip = None\n")
    metadata = site / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: absent\n"
    )
    (metadata / "RECORD").write_text(f"{name}/version.py,,\n{metadata.name}/METADATA,,\n{metadata.name}/RECORD,,\n")


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """The prefix of the user's own environment, with a fake CUDA stack and this environment's setuptools."""
    prefix = tmp_path / "user"
    subprocess.run([sys.executable, "-m", "venv", str(prefix)], check=True)
    (site,) = prefix.glob("lib/python3*/site-packages")
    for name, version in STACK.items():
        add_fake(site, name, version)
    for path in site.glob("setuptools*"):
        shutil.rmtree(path)
    packages = Path(setuptools.__file__).parents[1]
    for path in (packages / "setuptools", *packages.glob("setuptools-*.dist-info")):
        (site / path.name).symlink_to(path)
    return prefix


@pytest.fixture
def checkout(tmp_path: Path, repository: Path) -> Path:
    """A copy of the repository, so that no build leaves files in the real one."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in ("april", "specrollout", "patches", "launch", "configs"):
        shutil.copytree(repository / folder, copy / folder, ignore=ignore)
    for file in ("setup.py", "pyproject.toml", "Makefile"):
        shutil.copy(repository / file, copy / file)
    return copy


def snapshot(prefix: Path) -> dict[str, tuple[str, int]]:
    """Every file of an environment with its hash and time; compiled files are Python's own affair."""
    files = [path for path in prefix.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {
        str(path.relative_to(prefix)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in files
    }


def make_setup(checkout: Path, user: Path, device: str = "cuda") -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SETUP_"))}
    environment.update(PYTHON=str(user / "bin" / "python"), SETUP_DEVICE=device, PIP_NO_INDEX="1")
    command = [sys.executable, "launch/bootstrap.py"]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def test_only_the_overlay_is_added(checkout: Path, user: Path) -> None:
    before = snapshot(user)
    done = make_setup(checkout, user)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "added april-rollout;" in done.stdout
    after = snapshot(user)
    assert {name: after.get(name) for name in before} == before
    added = {Path(name).parts[-1] if "bin" in name else Path(name).parts[3] for name in set(after) - set(before)}
    assert all(part == "april" or part.startswith(("april_rollout-", "__editable__")) for part in added), added
    assert not (checkout / ".venv").exists()
    found = subprocess.run(
        [user / "bin" / "python", "-c", "import april; print(april.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert found.stdout.strip() == str(checkout / "april" / "__init__.py")

    again = make_setup(checkout, user)
    assert again.returncode == 0
    assert "nothing to do: the overlay is installed" in again.stdout
    assert snapshot(user) == after


def test_a_torch_for_another_device_is_refused_and_nothing_is_written(checkout: Path, user: Path) -> None:
    before = snapshot(user)
    done = make_setup(checkout, user, device="rocm")
    assert done.returncode == 1
    assert "this machine's device is rocm, but torch in the Python" in done.stderr
    assert "is a build for cuda" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert snapshot(user) == before


def fake_probe(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    base = {"python": [3, 12, 1], "prefix": "/user", "versions": dict(STACK), "april": "", "torch_build": "cuda"}
    monkeypatch.setattr(overlay_module, "probe", lambda python: {**base, **found})


def test_absent_requirements_are_added_by_hash_and_without_dependencies(
    monkeypatch: pytest.MonkeyPatch, repository: Path, noted: NotedCommands
) -> None:
    there = {name: version for name, version in STACK.items() if name != "wrapt"}
    fake_probe(monkeypatch, versions={**there, "setuptools": "80.9.0"})
    wanted: list[str] = []

    def read(command: list[str]) -> str:
        if "-r" in command:
            wanted.append(Path(command[-1]).read_text())
        return ""

    noted.answer = read
    Overlay(repository, "python3", "cuda", lambda: noted).install()  # type: ignore[arg-type, return-value]
    assert wanted == [read_lock(repository / "configs" / "locks" / "cpu.txt")["wrapt"].requirement]
    requirements, editable = noted.commands
    assert {"--no-deps", "--require-hashes"} <= set(requirements)
    assert {"--no-deps", "--no-build-isolation", "-e"} <= set(editable)


def test_an_old_setuptools_is_not_moved_but_built_beside(
    monkeypatch: pytest.MonkeyPatch, repository: Path, noted: NotedCommands
) -> None:
    fake_probe(monkeypatch, versions={**STACK, "setuptools": "59.6.0"})
    Overlay(repository, "python3", "cuda", lambda: noted).install()  # type: ignore[arg-type, return-value]
    (editable,) = noted.commands
    assert "--no-build-isolation" not in editable
    assert "--no-deps" in editable


def test_a_moved_package_is_an_error(monkeypatch: pytest.MonkeyPatch, repository: Path, noted: NotedCommands) -> None:
    fake_probe(monkeypatch)
    overlay = Overlay(repository, "python3", "cuda", lambda: noted)  # type: ignore[arg-type, return-value]
    fake_probe(monkeypatch, versions={**STACK, "torch": "2.13.0", "april-rollout": "0.1.0"})
    with pytest.raises(SetupError, match="installing the overlay changed torch in /user"):
        overlay.install()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"torch_build": ""}, "no torch in the Python python3 (/user)"),
        ({"torch_build": "cpu"}, "is a build for cpu"),
        ({"python": [3, 13, 0]}, "Python 3.10 to 3.12 is needed"),
    ],
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, repository: Path, noted: NotedCommands, found: dict[str, Any], expected: str
) -> None:
    fake_probe(monkeypatch, **found)
    with pytest.raises(SetupError) as caught:
        Overlay(repository, "python3", "cuda", lambda: noted).check()  # type: ignore[arg-type, return-value]
    assert expected in str(caught.value)
    assert "PYTHON=..." in str(caught.value)


def test_a_python_that_is_none() -> None:
    with pytest.raises(SetupError, match="PYTHON=/no/such is no program"):
        overlay_module.probe("/no/such")
    with pytest.raises(SetupError, match="PYTHON=false does not run"):
        overlay_module.probe("false")


def test_what_the_overlay_needs_is_said_once(repository: Path) -> None:
    required = re.search(r"install_requires=(\[.*\])", (repository / "setup.py").read_text())
    assert required
    least = dict(text.split(">=") for text in ast.literal_eval(required[1]))
    assert least == NEEDED
    assert {*overlay_module.NEEDS, "jinja2"} == set(least)
