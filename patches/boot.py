"""Arms the patches in a process: Ray's ``worker_process_setup_hook`` and the first line of the driver.

Imports nothing heavy: every patch waits for the import of its target. Settings come from the environment of the run.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from types import ModuleType

import wrapt

from april.memory import install as memory
from april.patches import live, process, receipts
from april.patches.core import Patch, Process
from april.patches.table import of_this_run

_lock = threading.RLock()
_registered: set[tuple[str, str]] = set()
_armed: set[str] = set()


def install() -> None:
    """Arm every patch that this run needs; calling it again adds nothing.

    Environment: ``APRIL_HOST`` (``slime`` or ``miles``) and ``APRIL_DEVICE`` (``cpu``, ``cuda`` or ``rocm``);
    ``APRIL_ROLLOUT`` is ``off`` in a run without partial rollouts; ``APRIL_MEMORY`` is ``april`` in one whose memory
    saver is ours.

    Raises:
        AprilError: when the target of a patch has been imported already and does not match, or was taken by others.
    """
    started = time.perf_counter()
    host = os.environ["APRIL_HOST"]
    memory.install_chosen(os.environ)
    with _lock:
        for patch in of_this_run():
            if patch.name not in _armed and not patch.around:
                _armed.add(patch.name)
                for module in patch.triggers(host):
                    _arm(patch, module)
    receipts.arm_ms = 1000 * (time.perf_counter() - started)


def _arm(patch: Patch, module: str) -> None:
    if module in sys.modules:
        _on_import(patch, sys.modules[module], late=True)
    elif (patch.name, module) not in _registered:
        _registered.add((patch.name, module))
        wrapt.register_post_import_hook(functools.partial(_on_import, patch), module)


def install_driver() -> None:
    """:func:`install` in the driver."""
    process.set_role(Process.DRIVER)
    install()


def uninstall() -> None:
    """Undo every live patch of :func:`install` and arm none any more; the very objects are back.

    Raises:
        AprilError: when somebody else has replaced a target since.
    """
    with _lock:
        for name in reversed(live.live()):
            if name in _armed:
                live.undo(name)
        _armed.clear()


def _on_import(patch: Patch, module: ModuleType, late: bool = False) -> None:
    if patch.name not in _armed or (patch.scoped and process.role() not in patch.processes):
        return
    if live.apply_once(patch, module, late):
        receipts.write()
