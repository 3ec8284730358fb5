"""Sequences of different lengths in padded blocks, for attention over all of a block at once. Pure logic."""

from __future__ import annotations

WASTE = 1.5
"""A block is cut when padding would make it this many times larger than its content."""


def blocks(lengths: list[int]) -> list[list[int]]:
    """Indices in blocks, longest first; a block's padded size stays below ``WASTE`` times its content."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    cut: list[list[int]] = []
    content = 0
    for index in order:
        if cut and lengths[cut[-1][0]] * (len(cut[-1]) + 1) <= WASTE * (content + lengths[index]):
            cut[-1].append(index)
            content += lengths[index]
        else:
            cut.append([index])
            content = lengths[index]
    return cut
