"""Model folders that are made once and kept: each under a key of what went into it, complete or not there at all."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from april.errors import AprilError, UsageError


def folder(given: str | None, environment: Mapping[str, str]) -> Path:
    """The cache's folder: as given, else ``$XDG_CACHE_HOME/april``, else ``~/.cache/april``; made where missing.

    Raises UsageError when nothing can be written there.
    """
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(given) if given else Path(base) / "april"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise UsageError(
            f"the cache {path} cannot be written ({error.strerror}): give another with --cache-dir"
        ) from error


def key(recipe: Mapping[str, Any], distributions: list[str], sources: list[Path]) -> str:
    """12 hex digits that change with the recipe, the versions of the named distributions, and the source files."""
    made_of = {
        "recipe": recipe,
        "versions": {name: importlib.metadata.version(name) for name in distributions},
        "sources": [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources],
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]


def ensure(target: Path, build: Callable[[Path], None]) -> bool:
    """Have ``build`` fill the folder ``target`` unless it is there; returns whether it had to.

    It is built beside the target and renamed, so that an interruption leaves no half of it.
    """
    if target.is_dir():
        return False
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        build(made)
        made.chmod(0o755)
        try:
            os.rename(made, target)
        except OSError:
            if not target.is_dir():  # else another process was quicker, and its folder is as good
                raise
    except OSError as error:
        raise AprilError(f"{target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return True
