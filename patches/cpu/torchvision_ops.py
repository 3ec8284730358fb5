"""Declares torchvision's operators where its compiled library cannot be loaded.

torchvision's wheel on the registry is built for CUDA. Beside a CPU torch its library does not load, and the import
then fails because shape functions are registered for operators that do not exist. Declaring them is enough: nothing
here calls them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from april.patches.patcher import Patcher

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
)
_library: Any = None


def apply(module: ModuleType, patcher: Patcher) -> None:
    """Declare the operators; ``module`` is ``torchvision.extension``, which has just tried its library."""
    del patcher  # a declared operator cannot be taken back
    global _library
    import torch

    if not module._has_ops() and _library is None:
        _library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in OPERATORS:
            _library.define(schema)


def arm() -> None:
    """Declare the operators when torchvision is imported in this process; for tools and tests outside a run."""
    import wrapt

    wrapt.register_post_import_hook(lambda module: apply(module, Patcher()), "torchvision.extension")
