"""Registers ``QUANT_SELF`` with SGLang (entry point group ``sglang.srt.plugins``); the hooks are april.patches' rows.

Without settings in the environment (``SPECROLLOUT``) it does nothing.
"""

from __future__ import annotations

from typing import Any

from specrollout.settings import ALGORITHM, of_environment


def register() -> None:
    """Called by SGLang in each of its processes; a second call adds nothing. Raises UsageError for wrong settings."""
    if of_environment() is None:
        return
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import get_spec

    from specrollout.algorithm import QuantSelf

    if get_spec(ALGORITHM) is None:
        SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, spec_class=QuantSelf)(_worker)


def _worker(server_args: Any) -> type:
    from specrollout.worker import QuantSelfWorker

    return QuantSelfWorker
