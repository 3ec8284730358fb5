"""Drops ``pg_options``, which torch renamed in 2.6; miles passes it because "2.13" sorts before "2.6" as a string."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from april.patches.patcher import Patcher


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Wrap ``miles.utils.distributed_utils._new_process_group_helper``."""

    def helper(original: Any, *args: Any, pg_options: Any = None, **kwargs: Any) -> Any:
        if pg_options is not None:
            kwargs["backend_options"] = pg_options
        return original(*args, **kwargs)

    patcher.wrap(module, "_new_process_group_helper", helper)
