"""The overlay's SGLang plugin (entry point group ``sglang.srt.plugins``).

SGLang only logs a hook whose target is missing, and a plugin that raises, and starts without them. So the processes
check by themselves, once all hooks are applied, that each is really in place, and write their receipt; without it the
driver does not train.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable
from typing import Any

from april.errors import AprilError
from april.patches import core, process, receipts
from april.patches.core import Patch, Process
from april.patches.table import wanted

TARGETS = {
    "decode-attention-batched": "TorchNativeAttnBackend._run_sdpa_forward_decode",
}
ENTRY_POINTS = {
    Process.SCHEDULER: "sglang.srt.managers.scheduler.Scheduler.__init__",
    Process.TOKENIZER: "sglang.srt.managers.tokenizer_manager.TokenizerManager.__init__",
}


def register() -> None:
    """Register the hooks of this run; outside a run (no ``APRIL_HOST``) there are none."""
    host = os.environ.get("APRIL_HOST")
    if host is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    rows = [patch for patch in wanted(host, os.environ["APRIL_DEVICE"]) if patch.name in TARGETS]
    for patch in rows:
        HookRegistry.register(_target(patch), _implementation(patch), HookType.AROUND)
    for kind, entry in ENTRY_POINTS.items():
        HookRegistry.register(entry, _report(kind, rows), HookType.BEFORE)


def _target(patch: Patch) -> str:
    return f"{patch.module}.{TARGETS[patch.name]}"


def _implementation(patch: Patch) -> Callable[..., Any]:
    where, _, name = patch.apply.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(where), name)
    return function


def _report(kind: Process, rows: list[Patch]) -> Callable[..., None]:
    """A hook that runs before the process's main object is built."""

    def report(*args: Any, **kwargs: Any) -> None:
        process.set_role(kind)
        for patch in rows:
            found = pkgutil.resolve_name(_target(patch))
            held = [cell.cell_contents for cell in getattr(found, "__closure__", None) or ()]
            if _implementation(patch) not in held:
                raise AprilError(f"SGLang runs without {patch.name}: {_target(patch)} is {found!r}")
        core.mark_live([*(patch.name for patch in rows), "sglang-receipts"])
        receipts.write()

    return report
