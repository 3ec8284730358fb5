"""Weights sent to a colocated engine by value.

The trainer pickles its tensors for CUDA's inter-process handles. Tensors of a CPU have none: torch would send a file
descriptor, which a process of another Ray worker may not fetch. Pickled plainly they carry their bytes, and the engine
reads them as it does anything else.
"""

from __future__ import annotations

import base64
import pickle
from types import ModuleType
from typing import Any

from april.patches.patcher import Patcher


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Replace ``MultiprocessingSerializer.serialize`` as the host's trainer imported it."""
    patcher.replace(module.MultiprocessingSerializer, "serialize", staticmethod(serialize))


def serialize(obj: Any, output_str: bool = False) -> bytes | str:
    """The pickled object, as base64 where text is asked for."""
    data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    return base64.b64encode(data).decode() if output_str else data
