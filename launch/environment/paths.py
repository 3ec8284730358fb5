"""Where the set-up puts things. Imports nothing of ours, so every layer may ask it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LOCKS = REPOSITORY / "configs" / "locks"
BUILD = REPOSITORY / "build"
LOG = BUILD / "setup.log"
VENV = REPOSITORY / ".venv"

SHARE = Path("share") / "april"
"""Below an environment's prefix: what the set-up keeps there beside the installed packages."""

COMPLETE = ".complete"
"""A file that marks an unpacked tree as whole; it is written before the tree gets its final name."""


def miles_root() -> Path | None:
    """The folder that holds the unpacked ``miles`` and ``megatron``, to be put on ``sys.path``; None where there is
    none.

    ``APRIL_MILES_DIR`` overrides the one that set-up unpacked; it is returned unchecked, so that the caller can say
    what is wrong with it.
    """
    override = os.environ.get("APRIL_MILES_DIR")
    if override:
        return Path(override)
    found = [path for path in (Path(sys.prefix) / SHARE).glob("miles-*") if (path / COMPLETE).is_file()]
    return max(found, default=None)
