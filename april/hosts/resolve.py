"""Finds the host: slime's tree, an importable slime, miles' unpacked wheel, or a clone of slime at the pin.

Only files are looked at; nothing of a host is imported.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from april.errors import UsageError
from april.hosts import NAMES, Host
from april.hosts.miles import Miles
from april.hosts.slime import Slime
from april.launch.environment.paths import miles_root

SLIME_PIN = "624b824"
SLIME_URL = "https://github.com/THUDM/slime"
CLONE_LIMIT_S = 20.0


def resolve(name: str, slime_dir: str | None, environ: Mapping[str, str]) -> Host:
    """The host that the user asked for; ``auto`` prefers a slime that is here, then miles, then a clone of slime.

    Raises:
        UsageError: unknown name, a folder that is no slime, or nothing found.
    """
    if name not in ("auto", *NAMES):
        raise UsageError(f"unknown host {name!r}: use auto, {' or '.join(NAMES)}")
    given = slime_dir or environ.get("SLIME_DIR")
    if name == "miles":
        return _miles()
    if given:
        return slime_at(Path(given))
    if installed := _importable("slime"):
        return slime_at(installed)
    if name == "auto" and miles_root() is not None:
        return _miles()
    if cloned := _clone():
        return slime_at(cloned)
    raise UsageError(
        f"no slime found: give its tree at {SLIME_PIN} by --slime-dir or SLIME_DIR (a clone was not possible), "
        "or use --host miles after 'make setup'"
    )


def slime_at(root: Path) -> Slime:
    """slime's tree at ``root``. Whether it is a version that we know is checked against the tables of patches.

    Raises:
        UsageError: when it is no slime, or there is no Megatron-LM for it.
    """
    root = root.expanduser().resolve()
    if not (root / "slime" / "ray" / "rollout.py").is_file() or not (root / "train.py").is_file():
        raise UsageError(f"{root} is no slime tree: it lacks slime/ray/rollout.py or train.py")
    megatron = None
    if not _has_megatron_training():
        megatron = miles_root()
        if megatron is None:
            raise UsageError(
                "slime needs Megatron-LM with megatron.training: put it on PYTHONPATH, or run 'make setup', which "
                "unpacks the one in miles' wheel"
            )
    return Slime(root, _version(root), megatron)


def _version(root: Path) -> str:
    """What slime's set-up says, which for the pin is the release that it follows."""
    setup = root / "setup.py"
    found = re.search(r"version\s*=\s*[\"']([^\"']+)", setup.read_text(errors="replace")) if setup.is_file() else None
    return found[1] if found else "unknown"


def from_environment(environ: Mapping[str, str]) -> Host:
    """The host of a run that has been resolved already (``APRIL_HOST``, ``APRIL_HOST_ROOT``)."""
    root = Path(environ["APRIL_HOST_ROOT"])
    if environ["APRIL_HOST"] == "miles":
        return Miles(root, environ["APRIL_HOST_VERSION"])
    return Slime(root, environ["APRIL_HOST_VERSION"])


def _miles() -> Miles:
    root = miles_root()
    if root is None or not (root / "miles" / "__init__.py").is_file():
        where = f"{root} holds no miles package" if root else "miles is not unpacked here"
        raise UsageError(f"{where}: run 'make setup', or give the folder of its unpacked wheel by APRIL_MILES_DIR")
    infos = sorted(root.glob("miles_rl-*.dist-info"))
    return Miles(root, infos[-1].name.removeprefix("miles_rl-").removesuffix(".dist-info") if infos else "unknown")


def _importable(package: str) -> Path | None:
    """The tree around an importable package (its train.py is not part of the package)."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations))).parent
    return root if (root / "train.py").is_file() else None


def _has_megatron_training() -> bool:
    spec = importlib.util.find_spec("megatron")
    return spec is not None and any(
        (Path(place) / "training").is_dir() for place in spec.submodule_search_locations or ()
    )


def _clone() -> Path | None:
    """A clone of slime at the pin in the user's cache, or None when it cannot be had in time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "april"
    target, partial = cache / f"slime-{SLIME_PIN}", cache / f"slime-{SLIME_PIN}.partial-{os.getpid()}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    deadline = time.monotonic() + CLONE_LIMIT_S
    try:
        for command in (
            ["git", "clone", "--quiet", "--filter=blob:none", SLIME_URL, str(partial)],
            ["git", "-C", str(partial), "checkout", "--quiet", SLIME_PIN],
        ):
            left = max(0.1, deadline - time.monotonic())
            subprocess.run(command, check=True, timeout=left, capture_output=True, env=environment)
        partial.rename(target)
    except (OSError, subprocess.SubprocessError):
        return None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target
