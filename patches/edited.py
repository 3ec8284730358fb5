"""Applies patches from inside a source tree that ``april patch apply`` has edited, for those who cannot load plugins.

The edit is one call at the end of a target module: what the import hooks and SGLang's plugin would do, at the same
moment. Whichever of them comes first does it; outside a run there is nothing to do.
"""

from __future__ import annotations

import os
import sys

from april.patches import live, process, receipts, sglang_plugin
from april.patches.table import of_this_run


def apply(module: str) -> None:
    """Apply every patch of this run that waits for ``module``, which has just been executed.

    Raises:
        AprilError: when a target is not what its patch was made for.
    """
    host = os.environ.get("APRIL_HOST")
    if host is None:
        return
    for patch in of_this_run():
        if module not in patch.triggers(host) or patch.name in sglang_plugin.registered:
            continue
        if patch.scoped and process.role() not in patch.processes:
            continue
        if live.apply_once(patch, sys.modules[module]):
            receipts.write()
