"""Which kind of process of the run this is.

The driver, and SGLang's processes, are told. A Ray worker does not know what it will become when it starts; it is
recognised by the module of the actor that it loads.
"""

from __future__ import annotations

import os
import sys

from april.patches.core import Process

_role: Process | None = None

# The actor's module, most specific first: the rollout manager imports the engine's module as well.
_MARKERS = (
    (Process.TRAIN_ACTOR, "{host}.backends.megatron_utils.actor"),
    (Process.TRAIN_ACTOR, "{host}.ray.train_actor"),
    (Process.ROLLOUT_MANAGER, "{host}.ray.rollout"),
    (Process.ENGINE, "{host}.backends.sglang_utils.sglang_engine"),
)


def set_role(role: Process) -> None:
    """Declare what this process is; a forked child may declare itself anew."""
    global _role
    _role = role


def role() -> Process | None:
    """What this process is, or None while a Ray worker has not loaded an actor."""
    if _role is not None:
        return _role
    host = os.environ.get("APRIL_HOST", "")
    return next((kind for kind, marker in _MARKERS if marker.format(host=host) in sys.modules), None)
