"""The RL framework that the overlay runs on, behind one small interface: slime, or miles, its fork on PyPI."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

AddArguments = Callable[[ArgumentParser], ArgumentParser]


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that a host does not have: named, never emulated."""

    feature: str
    because: str


class Host(Protocol):
    """What the rest of the overlay needs of a host."""

    @property
    def name(self) -> str:
        """``slime`` or ``miles``."""
        ...

    @property
    def version(self) -> str:
        """The pin that was found."""
        ...

    @property
    def lacks(self) -> tuple[Lack, ...]:
        """What the host does not have."""
        ...

    def paths(self) -> list[Path]:
        """Folders for the module search path of every process, the host's own first."""
        ...

    def environment(self, device: str) -> dict[str, str]:
        """Environment variables of every process."""
        ...

    def cpu_flags(self) -> list[str]:
        """Flags of the host that a CPU needs beside those that are common to the hosts."""
        ...

    def parse_args(self, add_arguments: AddArguments) -> Namespace:
        """The host's own parser on ``sys.argv``, with our flags added through its hook."""
        ...

    def train(self, args: Namespace, ready: Callable[[], None], asynchronous: bool = False) -> None:
        """The host's training loop; ``ready`` is called when all processes are up, before the first step.

        ``asynchronous``: the loop that generates the next rollout while it trains on this one. Raises UsageError where
        the host has none.
        """
        ...


NAMES = ("slime", "miles")
