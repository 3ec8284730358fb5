"""Folders that a command of ours writes to."""

from __future__ import annotations

from pathlib import Path

from april.errors import UsageError


def empty(flag: str, given: str | None, default: str) -> Path:
    """The folder ``given`` by ``flag``, or ``default``: made where missing, and empty, so that no run is overwritten.

    Raises:
        UsageError: when it holds something already or cannot be made.
    """
    folder = Path(given or default).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{flag} {folder}: {error.strerror}") from error
    if any(folder.iterdir()):
        raise UsageError(f"{flag} {folder} is not empty: give a new one, so that no run is overwritten")
    return folder
