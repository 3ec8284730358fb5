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
from april.memory import install as memory
from april.patches import live, process, receipts
from april.patches.core import Patch, Process
from april.patches.table import of_this_run

registered: set[str] = set()
"""The patches whose hooks SGLang's registry has."""


def register() -> None:
    """Register the hooks of this run; outside a run, and without speculation, there are none."""
    if not ("APRIL_HOST" in os.environ or os.environ.get("SPECROLLOUT")):
        return
    _place_memory_saver()
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for patch in _rows():
        # In a source tree that `april patch apply` has edited the patch is live as soon as its target is imported.
        if patch.name not in live.live() and patch.name not in registered and _holds(patch):
            registered.add(patch.name)
            for target in patch.targets:
                HookRegistry.register(target.places[0].replace(":", "."), _implementation(patch), HookType.AROUND)


def _place_memory_saver() -> None:
    """A process that was spawned, on a GPU, did not get it with Ray's hook."""
    try:
        memory.install_chosen(os.environ)
    except AprilError as error:
        receipts.write_fault(str(error))
        raise


def _rows() -> list[Patch]:
    return [patch for patch in of_this_run() if patch.around]


def _holds(patch: Patch) -> bool:
    """Whether the target is one that was verified. Without an optional patch the process runs, without another not."""
    if not patch.exact:
        return True
    try:
        live.verify(patch)
    except AprilError as error:
        if patch.optional:
            live.skip(patch, str(error))
            return False
        receipts.write_fault(str(error))
        raise
    return True


def _implementation(patch: Patch) -> Callable[..., Any]:
    where, _, name = patch.apply.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(where), name)
    return function


def report_scheduler(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around ``Scheduler.__init__``: reports before the process's main object is built."""
    _report(Process.SCHEDULER)
    return original(*args, **kwargs)


def report_tokenizer(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around ``TokenizerManager.__init__``, as :func:`report_scheduler`."""
    _report(Process.TOKENIZER)
    return original(*args, **kwargs)


def _report(kind: Process) -> None:
    process.set_role(kind)
    rows = [patch for patch in _rows() if kind in patch.processes and patch.name not in live.skipped()]
    for patch in rows:
        for target in patch.targets:
            found = pkgutil.resolve_name(target.places[0])
            if _implementation(patch) not in _wrapped(found):
                reason = f"SGLang's {kind.value} runs without {patch.name}: {target} is {found!r}"
                receipts.write_fault(reason)
                raise AprilError(reason)
    live.mark_live([patch.name for patch in rows])
    receipts.write()


def _wrapped(found: Any) -> list[Any]:
    """What is held by the wrappers around a function, the outermost first: each of SGLang's holds one hook."""
    held: list[Any] = []
    while (inner := getattr(found, "__wrapped__", None)) is not None:
        held += [cell.cell_contents for cell in getattr(found, "__closure__", None) or ()]
        found = inner
    return held
