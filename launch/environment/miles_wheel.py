"""Unpacking miles' wheel beside the installed packages instead of installing it.

The wheel carries 2,264 files of ``sglang/`` that would overwrite the installed SGLang, and requirements that are not
needed. What is unpacked (``miles``, ``miles_plugins``, ``miles_megatron_plugins``, ``megatron``) goes on ``sys.path``
only where it is asked for; see ``paths.miles_root``. The tree appears under its final name when it is whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import SetupError
from .inventory import missing_files
from .paths import COMPLETE

LEFT_OUT = "sglang/"


def check_hash(wheel: Path, hashes: Sequence[str]) -> str:
    """The wheel's sha256; raises SetupError when it is not one of ``hashes``."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found not in hashes:
        raise SetupError(
            f"{wheel.name} has sha256 {found[:16]}..., which the lock file does not name: it was not unpacked"
        )
    return found


def unpack(wheel: Path, target: Path, hashes: Sequence[str], compile_tree: Callable[[Path, Path], object]) -> int:
    """Put the wheel's files, less ``sglang/``, into ``target``; return how many. Replaces what was there.

    ``compile_tree(scratch, target)`` byte-compiles the files in ``scratch`` for their life in ``target``.
    """
    found = check_hash(wheel, hashes)
    discard_leftovers(target)
    scratch = target.with_name(f".{target.name}.new")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.startswith(LEFT_OUT)]
        archive.extractall(scratch, names)
    compile_tree(scratch, target)
    (scratch / COMPLETE).write_text(found, encoding="utf-8")
    if target.exists():
        os.rename(target, target.with_name(f".{target.name}.old"))
    os.rename(scratch, target)
    discard_leftovers(target)
    return len(names)


def discard_leftovers(target: Path) -> None:
    """Remove the half-made and the replaced trees of an interrupted run."""
    for suffix in ("new", "old"):
        shutil.rmtree(target.with_name(f".{target.name}.{suffix}"), ignore_errors=True)


def is_whole(target: Path, hashes: Sequence[str]) -> bool:
    """Whether ``target`` holds every file of a wheel with one of ``hashes``, ``sglang/`` apart."""
    try:
        unpacked = (target / COMPLETE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    record = next(target.glob("*.dist-info/RECORD"), None)
    return unpacked in hashes and record is not None and not missing_files(target, record, skip=LEFT_OUT)
