"""Makes transformers importable on a CPU machine, without its remarks."""

from __future__ import annotations

import logging


def prepare() -> None:
    """To be called first in a process that uses transformers' models.

    torchvision's operators are declared where its library does not load. Warnings at import time (torchao's compiled
    parts, which nothing here uses) and transformers' own progress bars are kept off ours.
    """
    from april.patches.cpu import torchvision_ops

    torchvision_ops.arm()
    logging.disable(logging.WARNING)
    try:
        import transformers.modeling_utils
    finally:
        logging.disable(logging.NOTSET)
    transformers.utils.logging.disable_progress_bar()
