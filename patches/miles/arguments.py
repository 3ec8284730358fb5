"""Gives SGLang's arguments the names that miles reads as well as those that SGLang 0.5.15 has."""

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


def apply_colocated(module: ModuleType, patcher: Patcher) -> None:
    """Wrap ``miles.utils.arguments.miles_validate_args``: its two switches of piecewise graphs are one name now."""

    def validate(original: Any, args: Any) -> Any:
        if not hasattr(args, "sglang_cuda_graph_backend_prefill"):
            return original(args)
        args.sglang_enforce_piecewise_cuda_graph = args.sglang_cuda_graph_backend_prefill == "tc_piecewise"
        args.sglang_disable_piecewise_cuda_graph = args.sglang_cuda_graph_backend_prefill == "disabled"
        made = original(args)
        if args.sglang_disable_piecewise_cuda_graph and not args.sglang_enforce_piecewise_cuda_graph:
            args.sglang_cuda_graph_backend_prefill = "disabled"
        return made

    patcher.wrap(module, "miles_validate_args", validate)
