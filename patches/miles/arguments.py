"""Gives SGLang's parallel-size arguments the names that miles reads as well as those that SGLang 0.5.15 has."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from april.patches.patcher import Patcher

RENAMED = {
    "dp": "data",
    "pp": "pipeline",
    "ep": "expert",
    "tp": "tensor",
    "moe_dp": "moe_data",
}


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Wrap ``miles.utils.arguments.sglang_validate_args``."""

    def validate(original: Any, args: Any) -> Any:
        for short, long in RENAMED.items():
            names = f"sglang_{short}_size", f"sglang_{long}_parallel_size"
            for have, lack in (names, names[::-1]):
                if hasattr(args, have) and not hasattr(args, lack):
                    setattr(args, lack, getattr(args, have))
        return original(args)

    patcher.wrap(module, "sglang_validate_args", validate)
