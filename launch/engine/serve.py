"""SGLang's real server on a CPU: ``python -m april.launch.engine.serve [SGLang's flags]``.

The scheduler is a fork, so that it imports nothing again. Plugins take their settings from the environment.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any


def main(argv: list[str]) -> None:
    """Serves until it is ended."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    from april.patches.cpu.torchvision_ops import arm

    arm()
    original: Any = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: original("fork", force=True)
    from sglang.srt.plugins import load_plugins

    load_plugins()
    import sglang.srt.managers.scheduler  # noqa: F401
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    launch_server(prepare_server_args(argv))


if __name__ == "__main__":
    main(sys.argv[1:])
