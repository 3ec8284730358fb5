"""Weight updates over gloo: both ends of miles' update group name nccl."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from april.patches.patcher import Patcher


def apply_engine(module: ModuleType, patcher: Patcher) -> None:
    """The engine's end: ``SGLangEngine.init_weights_update_group``."""

    def init_group(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **{**kwargs, "backend": "gloo"})

    patcher.wrap(module.SGLangEngine, "init_weights_update_group", init_group)


def apply_trainer(module: ModuleType, patcher: Patcher) -> None:
    """The trainer's end: ``init_process_group`` as the broadcast module imported it."""

    def init_group(original: Any, backend: str | None = None, **kwargs: Any) -> Any:
        return original(backend="gloo", **kwargs)

    patcher.wrap(module, "init_process_group", init_group)
