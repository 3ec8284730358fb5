"""Lets miles start without the peer-to-peer weight transfer that the pinned SGLang does not have."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

from april.errors import UsageError
from april.patches.patcher import Patcher

P2P = "miles.backends.megatron_utils.update_weight.update_weight_from_distributed.p2p"


class UpdateWeightP2P:
    """Stands where miles' class would: asking for it is an error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise UsageError(
            "--update-weight-transfer-mode p2p needs mooncake and miles' fork of SGLang, which are not installed; "
            "use the broadcast transfer"
        )


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Provide the p2p module, where mooncake is absent, before miles imports it."""
    del module, patcher
    if importlib.util.find_spec("mooncake") is None and P2P not in sys.modules:
        stub = ModuleType(P2P, UpdateWeightP2P.__doc__)
        stub.UpdateWeightP2P = UpdateWeightP2P  # type: ignore[attr-defined]
        sys.modules[P2P] = stub
