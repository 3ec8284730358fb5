"""The host's own pause, around its weight update, in the mode of the run; slime's aborts every request.

An engine whose memory is released between the phases (``--offload-rollout``) has its KV cache back only after the host
has told it to go on. It stays paused then, and the next rollout or evaluation lets it go on.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from april.patches.patcher import Patcher

MODES = {"retract": "retract", "inplace": "in_place"}
"""SGLang's name of each mode."""
TIMEOUT_S = 60.0


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Replace ``SGLangEngine.pause_generation`` and wrap ``continue_generation``."""

    def pause_generation(original: Any, self: Any, mode: str = "") -> Any:
        if self.node_rank != 0:
            return None
        url = f"http://{self.server_host}:{self.server_port}/pause_generation"
        response = module.requests.post(url, json={"mode": MODES[os.environ["APRIL_INTERRUPT"]]}, timeout=TIMEOUT_S)
        response.raise_for_status()
        return response

    def continue_generation(original: Any, self: Any) -> Any:
        return None if self.args.offload_rollout else original(self)

    patcher.wrap(module.SGLangEngine, "pause_generation", pause_generation)
    patcher.wrap(module.SGLangEngine, "continue_generation", continue_generation)
