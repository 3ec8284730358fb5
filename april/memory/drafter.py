"""What a drafter has to know of its engine's memory saver.

A drafter allocates under :func:`tag` when it is made. SGLang makes it before it sizes the KV cache by what is free, so
that the cache gets what the drafter leaves. With our saver the drafter's memory is a tag of its own, released and
resumed with the weights: never kept, back before the first draft, and dirty until it was made anew. torch_memory_saver
knows no tag that SGLang does not name; there a drafter is part of the weights, and a resume has to be hooked.
"""

from __future__ import annotations

from april.memory import install
from april.memory.kinds import DRAFTER, WEIGHTS


def tag() -> str:
    """The tag to allocate under, for SGLang's ``memory_saver_adapter.region``."""
    return DRAFTER if install.serves() else WEIGHTS


def dirty() -> bool:
    """Whether the drafter's contents were dropped since :func:`mark_clean`. False where our saver does not serve."""
    if not install.serves():
        return False
    from april.memory.tms import torch_memory_saver

    return torch_memory_saver.saver.dirty(DRAFTER)


def mark_clean() -> None:
    """The drafter has been made anew."""
    if install.serves():
        from april.memory.tms import torch_memory_saver

        torch_memory_saver.saver.mark_clean(DRAFTER)
