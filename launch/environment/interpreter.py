"""Finding the Python that makes the CPU environment."""

from __future__ import annotations

import glob
import os
import shutil
import sys
from typing import NamedTuple

from .detect import ask
from .errors import SetupError

VERSION = "3.11"
"""The lock files are made for it."""

PROBE = "import sys, venv, ensurepip; print('%d.%d.%d' % sys.version_info[:3])"
WITHOUT_VENV = "import sys; print('%d.%d.%d' % sys.version_info[:3])"


class Interpreter(NamedTuple):
    """A Python program and its full version."""

    program: str
    version: str


def candidates() -> list[str]:
    """Where a Python 3.11 may be: ``PYTHON``, the one that runs, the search path, pyenv's versions."""
    named = [os.environ.get("PYTHON", ""), sys.executable, f"python{VERSION}"]
    found = [shutil.which(name) for name in named if name]
    found += sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{VERSION}.*/bin/python{VERSION}")))
    found += [path for path in (f"/usr/bin/python{VERSION}", f"/usr/local/bin/python{VERSION}") if os.path.exists(path)]
    return list(dict.fromkeys(path for path in found if path))


def find(programs: list[str] | None = None) -> Interpreter:
    """The first Python 3.11 that can make a virtual environment. Raises SetupError when there is none."""
    seen = []
    for program in candidates() if programs is None else programs:
        version = ask([program, "-c", PROBE]).strip()
        if version.startswith(VERSION + "."):
            return Interpreter(program, version)
        if version:
            seen.append(f"{version} ({program})")
            continue
        bare = ask([program, "-c", WITHOUT_VENV]).strip()
        if bare:
            seen.append(f"{bare} ({program}, which lacks the modules venv and ensurepip)")
    raise SetupError(
        f"Python {VERSION} is needed, since the lock files are made for it; found {', '.join(seen) or 'none'}: "
        f"install python{VERSION} and python{VERSION}-venv, or name one with PYTHON=..."
    )
