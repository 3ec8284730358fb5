"""Downloads one wheel of a package from the registry that pip is configured for, once, into the user's cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from april.errors import UsageError
from april.patches.sources import DISTRIBUTIONS

TIMEOUT_S = 300.0


def cache_dir() -> Path:
    """Where downloads are kept."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "april" / "packages"
    except RuntimeError as error:
        raise UsageError(f"no place for downloads: {error}; set XDG_CACHE_HOME") from error


def wheel(package: str, version: str) -> Path:
    """The wheel of a version; ``latest`` is asked for anew each time.

    Raises:
        UsageError: when pip cannot get it.
    """
    name = DISTRIBUTIONS[package]
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _wheel(name, version, folder)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; set XDG_CACHE_HOME to a folder that can be written") from error


def _wheel(name: str, version: str, folder: Path) -> Path:
    stem = re.sub(r"[-_.]+", "_", name)
    kept = sorted(folder.glob(f"{stem}-{version}-*.whl"))
    if kept and zipfile.is_zipfile(kept[0]):
        return kept[0]
    wanted = name if version == "latest" else f"{name}=={version}"
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        try:
            done = subprocess.run(
                [*command, "--only-binary", ":all:", "--dest", draft, wanted],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(f"{wanted}: pip did not get it within {TIMEOUT_S:.0f} s") from error
        found = sorted(Path(draft).glob("*.whl"))
        if done.returncode or not found:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no answer"]
            raise UsageError(f"{wanted}: pip cannot get it from its registry ({lines[-1]})")
        target = folder / found[0].name
        shutil.move(found[0], target)
    return target
