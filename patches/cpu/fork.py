"""SGLang's processes as forks of the engine actor, on a CPU.

The HTTP server, the scheduler and the detokenizer are started with ``spawn``, and each imports again, for many
seconds, what the engine actor has imported. Without a GPU context nothing stands against ``fork``.
"""

from __future__ import annotations

import multiprocessing
from types import ModuleType
from typing import Any

from april.patches.patcher import Patcher


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Fork instead of spawn; ``module`` is the host's ``sglang_engine``, in the process that is their parent."""
    del module

    def set_start_method(original: Any, method: str | None, force: bool = False) -> None:
        original("fork" if method == "spawn" else method, force=True)

    patcher.wrap(multiprocessing, "set_start_method", set_start_method)
    # Imported here, once, for the three processes that will be forked.
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.scheduler  # noqa: F401
