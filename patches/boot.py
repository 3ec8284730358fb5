"""Arms the patches in a process: Ray's ``worker_process_setup_hook`` and the first line of the driver.

Imports nothing heavy: every patch waits for the import of its target. Settings come from the environment of the run.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType

import wrapt

from april.patches import core, process, receipts
from april.patches.core import Patch, Process
from april.patches.table import wanted

_armed: set[str] = set()


def install() -> None:
    """Arm every patch that this run needs; calling it again adds nothing.

    Environment: ``APRIL_HOST`` (``slime`` or ``miles``) and ``APRIL_DEVICE`` (``cpu``, ``cuda`` or ``rocm``).
    """
    host = os.environ["APRIL_HOST"]
    for patch in wanted(host, os.environ["APRIL_DEVICE"]):
        if patch.name not in _armed and not patch.module.startswith("sglang."):
            _armed.add(patch.name)
            module = patch.module.format(host=host)
            wrapt.register_post_import_hook(functools.partial(_on_import, patch), module)


def install_driver() -> None:
    """:func:`install` in the driver."""
    process.set_role(Process.DRIVER)
    install()


def _on_import(patch: Patch, module: ModuleType) -> None:
    if patch.scoped and process.role() not in patch.processes:
        return
    if core.apply_once(patch, module):
        receipts.write()
