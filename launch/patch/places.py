"""From what a user names to a source that can be read: a path, a version on the registry, or what is installed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from april.errors import UsageError
from april.launch.environment.paths import miles_root
from april.launch.patch import registry
from april.patches import sources
from april.patches.sources import Source

FLAGS = {
    "sglang": "sglang",
    "slime": "slime",
    "miles": "miles",
    "megatron": "megatron",
    "memory-saver": "torch_memory_saver",
    "ray": "ray",
}
"""The flag for each package."""
PLACE = "a source tree, a wheel, an sdist, or a version to download"


def given(package: str, place: str) -> Source:
    """A folder, a wheel or an sdist; a revision of a clone (``DIR@v0.3.0``); or a version, which is downloaded
    (``0.5.23``, ``latest``).

    Raises:
        UsageError: when it is none of these.
    """
    if not place:
        raise UsageError(f"no place of {package} is given: {PLACE}")
    clone, at, revision = place.rpartition("@")
    if at and not _exists(place) and _exists(clone):
        return sources.in_history(package, Path(clone).expanduser(), revision)
    if not _exists(place) and re.fullmatch(r"(==)?(\d[\w.+!-]*|latest)", place):
        if package == "slime":
            raise UsageError(f"slime {place} is on no registry: give its source tree, or CLONE@{place}")
        return sources.at(package, str(registry.wheel(package, place.removeprefix("=="))))
    return sources.at(package, place)


def present(package: str) -> Source | None:
    """The package as this machine has it: importable, or the host's tree."""
    if package == "slime" and (tree := os.environ.get("SLIME_DIR")):
        return sources.at("slime", tree)
    root = miles_root()
    if (named := os.environ.get("APRIL_MILES_DIR")) and package == "miles" and not Path(named, "miles").is_dir():
        raise UsageError(f"APRIL_MILES_DIR {named} holds no miles package")
    if package in ("miles", "megatron") and root is not None and (root / package).is_dir():
        return sources.at(package, str(root))
    return sources.installed(package)


def _exists(place: str) -> bool:
    try:
        return Path(place).expanduser().exists()
    except (OSError, RuntimeError):
        return False
