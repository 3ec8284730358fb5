"""Container files: pinned bases, the pins of configs/pins.json, nothing secret, readable for any user."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from april.launch.environment.paths import REPOSITORY

FOLDER = REPOSITORY / "configs" / "containers"
FILES = sorted(FOLDER.glob("*.Dockerfile"))
PINS = json.loads((REPOSITORY / "configs" / "pins.json").read_text())
INSTRUCTIONS = {"FROM", "ARG", "SHELL", "RUN", "COPY", "ENV", "WORKDIR"}


def instructions(file: Path) -> list[tuple[str, str]]:
    """Each instruction with its words, lines joined, comments left out."""
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_base_is_one_version(file: Path) -> None:
    found = instructions(file)
    assert {name for name, _ in found} <= INSTRUCTIONS
    defaults = dict(rest.split("=", 1) for name, rest in found if name == "ARG")
    bases = [re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], rest) for name, rest in found if name == "FROM"]
    assert len(bases) == 1
    tag = bases[0].partition(":")[2]
    assert re.search(r"\d", tag), bases
    assert "latest" not in tag
    assert not [name for name in ("TOKEN", "SECRET", "PASSWORD", "KEY") if name in file.read_text()]
    assert "chmod -R a+rX" in file.read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_pins_are_those_of_the_repository(file: Path) -> None:
    text = file.read_text()
    assert f"SLIME_COMMIT={PINS['slime']['commit']}\n" in text
    assert PINS["sglang"]["version"] in text
    for name, version in re.findall(r"([A-Za-z][\w-]*)(?:\[\w+\])?==([\w.]+)", text):
        if name in PINS:
            assert version == PINS[name]["version"], name
    assert "RUN april patch check" in text


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_its_commands_are_bash(file: Path) -> None:
    for name, rest in instructions(file):
        if name == "RUN":
            subprocess.run(["bash", "-n", "-c", rest], check=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_checkout_goes_in_without_what_was_built(file: Path) -> None:
    left = (FOLDER / f"{file.name}.dockerignore").read_text().split()
    assert {".git", ".venv", "build", "runs"} <= set(left)


def test_there_is_one_for_each_vendor() -> None:
    assert [file.stem for file in FILES] == ["cuda", "rocm"]
