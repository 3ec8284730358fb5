"""Stand-ins for the set-up's tests: a runner that notes commands, a progress that writes to memory."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from april.launch.environment.progress import Progress

REPOSITORY = Path(__file__).resolve().parents[2]


class NotedCommands:
    """Takes the place of ``Runner``: notes each command and lets ``answer`` act on it."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.answer: Callable[[list[str]], str] = lambda command: ""

    def run(self, command: list[str], what: str, *unused: object, **options: object) -> str:
        self.commands.append(command)
        return self.answer(command)


@pytest.fixture
def repository() -> Path:
    """The checkout under test."""
    return REPOSITORY


@pytest.fixture
def out() -> io.StringIO:
    """What the progress wrote."""
    return io.StringIO()


@pytest.fixture
def progress(out: io.StringIO) -> Progress:
    """A progress of three steps."""
    return Progress(3, out)


@pytest.fixture
def noted() -> NotedCommands:
    """A runner that runs nothing."""
    return NotedCommands()
