"""Copies every metric that the host logs into the run directory (``metrics.jsonl``)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from april.patches.patcher import Patcher
from april.telemetry.metrics import record


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Wrap the host's ``log(args, metrics, step_key)``."""

    def log(original: Any, args: Any, metrics: dict[str, Any], step_key: str) -> Any:
        record(args, metrics, step_key)
        return original(args, metrics, step_key=step_key)

    patcher.wrap(module, "log", log)
