"""A paused server answers its health check: the hosts replace an engine that does not.

SGLang's check generates a token and waits for any message of the scheduler, and a paused server generates none. So the
scheduler is asked for its state instead: it answers while it is paused, and only while it is well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any


def generate_request(original: Callable[..., Any], self: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``TokenizerManager.generate_request``, an asynchronous generator."""
    from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

    if self.is_pause and str(obj.rid).startswith(HEALTH_CHECK_RID_PREFIX):
        return _ask(self)
    return original(self, obj, *args, **kwargs)


async def _ask(manager: Any) -> AsyncIterator[dict[str, Any]]:
    await manager.get_internal_state()
    yield {}
