"""The set-up starts without anything installed, in any Python that it says it starts in."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

OLDEST = (3, 8)


def sources(repository: Path) -> list[Path]:
    return [repository / "launch" / "bootstrap.py", *sorted((repository / "launch" / "environment").glob("*.py"))]


def test_the_oldest_python_can_read_it(repository: Path) -> None:
    for path in sources(repository):
        ast.parse(path.read_text(), path.name, feature_version=OLDEST)


def test_nothing_but_the_standard_library_is_imported(repository: Path) -> None:
    for path in sources(repository):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            foreign = [name for name in names if name.split(".")[0] not in sys.stdlib_module_names]
            assert foreign == [], path.name


def test_it_starts_alone(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(repository / "launch" / "bootstrap.py"), "--device", "tpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "setup: unknown device 'tpu': one of auto, cpu, cuda, rocm\n"


@pytest.mark.parametrize("option", ["--nonsense", "--help"])
def test_usage(repository: Path, option: str) -> None:
    command = [sys.executable, str(repository / "launch" / "bootstrap.py"), option]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (2 if option == "--nonsense" else 0)
    assert "usage: make setup" in done.stdout + done.stderr
