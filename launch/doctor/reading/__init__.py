"""Reads the facts: files, sockets and package metadata; imports neither torch nor SGLang nor Ray, and never raises."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Unread:
    """A fact that could not be read, and why."""

    why: str


def text(path: Path) -> str | Unread:
    """What a small file holds, stripped."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return Unread(f"{path}: {error.strerror or error}")


def number(path: Path) -> int | Unread:
    """The one number that a file of the kernel holds."""
    found = text(path)
    if isinstance(found, Unread):
        return found
    return int(found) if found.lstrip("-").isdigit() else Unread(f"{path} holds no number: {found[:40]!r}")
