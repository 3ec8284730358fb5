"""The plan of a CPU machine: what counts as done, what is repaired, what each step asks the installers for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from april.launch.environment import inventory
from april.launch.environment.cpu import CpuEnvironment
from april.launch.environment.errors import SetupError

if TYPE_CHECKING:
    from conftest import NotedCommands

HASH = "a" * 64


def install(site: Path, name: str, version: str, text: str = "x = 1\n") -> Path:
    """A whole fake distribution of one module; returns the module."""
    site.mkdir(parents=True, exist_ok=True)
    module = site / f"{name}.py"
    module.write_text(text)
    metadata = site / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (metadata / "RECORD").write_text(f"{name}.py,sha256=x,{len(text)}\n__pycache__/{name}.cpython-311.pyc,,\n")
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    locks = tmp_path / "configs" / "locks"
    locks.mkdir(parents=True)
    for name, content in {
        "cpu": "six==1.0",
        "dev": "mypy==2.0",
        "tools": "uv==3.0",
        "miles": "miles-rl==0.0.2",
    }.items():
        (locks / f"{name}.txt").write_text(f"{content} --hash=sha256:{HASH}\n")
    (locks / "torch.in").write_text("torch==2.13.0\n")
    (tmp_path / "setup.py").write_text("")
    return tmp_path


@pytest.fixture
def environment(checkout: Path, noted: NotedCommands) -> CpuEnvironment:
    return CpuEnvironment(checkout, checkout / ".venv", lambda: noted)  # type: ignore[arg-type, return-value]


@pytest.fixture
def site(checkout: Path) -> Path:
    site = checkout / ".venv" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    return site


def test_all_locked_packages_in_their_versions(environment: CpuEnvironment, site: Path) -> None:
    assert not environment.has(environment.packages)
    install(site, "six", "1.0")
    install(site, "mypy", "1.9")
    assert not environment.has(environment.packages), "mypy is another version"
    install(site, "MyPy", "2.0")
    inventory.forget([inventory.Installed("mypy", "1.9", site / "mypy-1.9.dist-info")])
    assert environment.has(environment.packages)


def test_a_local_build_of_torch_counts(environment: CpuEnvironment, site: Path) -> None:
    install(site, "torch", "2.13.0+cpu")
    assert environment.has({"torch": environment.torch})


@pytest.mark.parametrize("damage", ["file gone", "file cut", "no record", "no metadata"])
def test_a_half_installed_package_is_installed_again(environment: CpuEnvironment, site: Path, damage: str) -> None:
    install(site, "mypy", "2.0")
    module = install(site, "six", "1.0")
    if damage == "file gone":
        module.unlink()
    elif damage == "file cut":
        module.write_text("x")
    else:
        (site / "six-1.0.dist-info" / ("RECORD" if damage == "no record" else "METADATA")).unlink()
    assert environment.repair() == ["six"]
    assert not environment.has(environment.packages)
    assert environment.repair() == []


def test_packages_of_the_users_own_are_left_alone(environment: CpuEnvironment, site: Path) -> None:
    install(site, "mine", "1.0").unlink()
    assert environment.repair() == []
    assert (site / "mine-1.0.dist-info").is_dir()


def test_what_a_killed_pip_moved_aside_is_removed(environment: CpuEnvironment, site: Path) -> None:
    (site / "~ix-1.0.dist-info").mkdir()
    (site / "~ix.py").touch()
    environment.repair()
    assert list(site.iterdir()) == []


def test_an_environment_of_another_python_is_not_written_to(environment: CpuEnvironment, noted: NotedCommands) -> None:
    environment.venv.mkdir()
    (environment.venv / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.1\n")
    with pytest.raises(SetupError, match=r"is made with Python 3\.12, the locks are for 3\.11: remove it"):
        environment.make_venv()
    assert noted.commands == []


def test_a_folder_that_is_no_environment_is_not_written_to(environment: CpuEnvironment, noted: NotedCommands) -> None:
    environment.venv.mkdir()
    (environment.venv / "thesis.tex").touch()
    with pytest.raises(SetupError, match="is no Python environment: move it away"):
        environment.make_venv()
    assert noted.commands == []


def test_a_half_made_environment_is_completed(environment: CpuEnvironment, noted: NotedCommands) -> None:
    (environment.venv / "bin").mkdir(parents=True)
    environment.make_venv()
    assert noted.commands[0][1:3] == ["-m", "venv"]


def test_the_locked_part_is_hash_checked_and_complete(environment: CpuEnvironment, noted: NotedCommands) -> None:
    environment.install_tools()
    environment.install_packages()
    install_commands = [command for command in noted.commands if "install" in command]
    assert len(install_commands) == 2
    for command in install_commands:
        assert {"--no-deps", "--require-hashes"} <= set(command)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("global.index-url='http://mirror/simple'\n", ["--default-index", "http://mirror/simple"]),
        (":env:.index-url='http://mirror/simple'\n", ["--default-index", "http://mirror/simple"]),
        ("global.extra-index-url='file:///opt'\n", []),
    ],
)
def test_the_index_that_pip_uses_is_passed_on(
    environment: CpuEnvironment, noted: NotedCommands, settings: str, expected: list[str]
) -> None:
    noted.answer = lambda command: settings if "config" in command else ""
    environment.install_packages()
    command = noted.commands[-1]
    start = command.index("--default-index") if expected else 0
    assert command[start : start + 2] == expected if expected else "--default-index" not in command


def test_torch_is_left_to_pip(environment: CpuEnvironment, site: Path, noted: NotedCommands) -> None:
    install(site, "torch", "2.13.0+cpu")
    assert environment.install_torch() == "2.13.0+cpu"
    assert noted.commands[0][1:4] == ["-m", "pip", "install"]
    assert noted.commands[0][-1] == "torch==2.13.0"


def test_a_build_that_is_none_for_a_cpu_is_said(environment: CpuEnvironment, site: Path) -> None:
    install(site, "torch", "2.13.0")
    assert "pip found no CPU build" in environment.install_torch()


def test_the_overlay_is_that_of_this_checkout(environment: CpuEnvironment, site: Path, checkout: Path) -> None:
    assert not environment.has_overlay()
    install(site, "april_rollout", "0.1.0")
    url = site / "april_rollout-0.1.0.dist-info" / "direct_url.json"
    url.write_text('{"dir_info": {"editable": true}, "url": "file:///elsewhere"}')
    assert not environment.has_overlay()
    url.write_text(json.dumps({"dir_info": {"editable": True}, "url": checkout.as_uri()}))
    assert environment.has_overlay()


def test_a_new_environment_needs_what_the_issue_allows(environment: CpuEnvironment) -> None:
    assert sum(step.disk for step in environment.steps()) == pytest.approx(8.0)
