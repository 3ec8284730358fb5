"""Versions and sizes, as the checks compare and print them."""

from __future__ import annotations

import re

KIB, MIB, GIB = 2**10, 2**20, 2**30


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``6.4.43482-0f2d60242`` is (6, 4, 43482), ``2.13.0+cpu`` is (2, 13, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def public(version: str) -> str:
    """A version without its local part: ``2.13.0+cpu`` is 2.13.0."""
    return version.partition("+")[0]


def size(count: int) -> str:
    """Bytes for people: ``24.0 GiB``, ``64 MiB``, ``8 KiB``."""
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.0f} MiB" if count >= MIB else f"{count / KIB:.0f} KiB"
