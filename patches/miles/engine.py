"""Leaves out the endpoint of miles' own SGLang fork: the pinned SGLang post-processes weights while it loads them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from april.patches.patcher import Patcher


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Replace ``SGLangEngine.post_process_weights`` by nothing."""

    def post_process_weights(self: Any, *args: Any, **kwargs: Any) -> None:
        return None

    patcher.replace(module.SGLangEngine, "post_process_weights", post_process_weights)
