"""The words of this package: what is kept of a region while it is paused, and in what order tags come back."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum

from april.errors import UsageError

LONGEST = 63
"""Bytes of a tag."""


class Keep(IntEnum):
    """Where the contents of a paused region wait. The numbers are the core's."""

    NOTHING = 0
    """Dropped: after a resume the contents are undefined, and the tag is dirty until someone says it is clean."""
    PINNED = 1
    """Page-locked host memory of the runtime: quickest, and resident."""
    MMAP = 2
    """Pageable host memory."""
    FILE = 3
    """An unlinked file: takes no resident memory; the kernel writes it out when it needs the room."""


WEIGHTS, KV_CACHE, DRAFTER, GRAPHS, TRAINING = "weights", "kv_cache", "drafter", "graphs", "training"

KEPT = {WEIGHTS: True, KV_CACHE: False, DRAFTER: False, GRAPHS: True, TRAINING: True}
"""Whether a region of a tag is kept when the caller does not say; other tags are kept. A KV cache is empty after a
weight update, and a drafter is quantized anew from the weights; graphs hold pointers and constants that nobody else
knows (sglang#32718)."""

FIRST = (WEIGHTS, DRAFTER, GRAPHS, "cuda_graph", TRAINING)
LAST = (KV_CACHE,)

FOLLOWERS = {WEIGHTS: (DRAFTER,)}
"""Tags that an engine pauses and resumes without naming them: SGLang knows weights, KV cache and graphs only. A drafter
comes back after the weights that it is made of and before the KV cache, hence before the first draft."""


def with_followers(tag: str | None, known: Collection[str]) -> list[str | None]:
    """A tag (None: all) and what goes with it, of the tags that are ``known``, in the order of a resume."""
    return [tag, *(each for each in FOLLOWERS.get(tag or "", ()) if each in known)]


def in_order(tags: list[str]) -> list[str]:
    """Tags as they are resumed: the drafter before any draft can run, the KV cache with what is then left."""

    def rank(tag: str) -> tuple[int, str]:
        if tag in FIRST:
            return FIRST.index(tag), tag
        return len(FIRST) + (tag in LAST), tag

    return sorted(tags, key=rank)


def checked(tag: str) -> str:
    """The tag; raises UsageError for one that the core cannot name."""
    if not tag or len(tag.encode()) > LONGEST or "\n" in tag or "\0" in tag:
        raise UsageError(f"a memory tag has 1 to {LONGEST} bytes and no line break, not {tag!r}")
    return tag
