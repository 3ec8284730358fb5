"""Reading requirement and lock files: names, versions, hashes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^\]]*\])?\s*(==\s*(?P<version>[^\s;\\,#]+))?")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Locked(NamedTuple):
    """One entry of a lock file."""

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """The entry as pip and uv read it, on one line."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{value}" for value in self.hashes)])


def normalize(name: str) -> str:
    """The one spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(path: Path) -> dict[str, Locked]:
    """A lock file's entries by normalized name. An entry without a version or hash has "" or () there."""
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    entries: dict[str, Locked] = {}
    for line in text.splitlines():
        match = REQUIREMENT.match(line)
        if match:
            name = normalize(match["name"])
            entries[name] = Locked(name, match["version"] or "", tuple(HASH.findall(line)))
    return entries


def read_names(path: Path) -> list[str]:
    """The normalized names that a requirements file asks for."""
    matches = (REQUIREMENT.match(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [normalize(match["name"]) for match in matches if match]


def digest(paths: Iterable[Path], *more: str) -> str:
    """A key over the files' contents and ``more``: it changes when one of them does."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes() + b"\0")
    for text in more:
        total.update(text.encode() + b"\0")
    return total.hexdigest()
