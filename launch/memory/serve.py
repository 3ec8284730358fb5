"""SGLang's real server on a CPU with our memory saver: ``python -m april.launch.memory.serve [SGLang's flags]``.

The scheduler is a fork, so that it imports nothing again, and has our module where torch_memory_saver would be.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any


def main(argv: list[str]) -> None:
    """Serves until it is ended."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    from april.memory.install import install

    install("april", "cpu")
    from april.patches.cpu.torchvision_ops import arm

    arm()
    original: Any = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: original("fork", force=True)
    import sglang.srt.managers.scheduler  # noqa: F401
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    launch_server(prepare_server_args(argv))


if __name__ == "__main__":
    main(sys.argv[1:])
