"""``QUANT_SELF`` known where a host makes the server's arguments, which is before SGLang loads its plugins.

The actor that starts a server checks its arguments, and so do the hosts' drivers. Undone by giving the registry its
former table back.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from april.patches.patcher import Patcher


def apply(module: ModuleType, patcher: Patcher) -> None:
    """``module`` is ``sglang.srt.speculative.spec_info``, which has imported the registry."""
    registry = importlib.import_module("sglang.srt.speculative.spec_registry")
    patcher.replace(registry, "_REGISTRY", dict(registry._REGISTRY))
    importlib.import_module("specrollout.plugin").register()
