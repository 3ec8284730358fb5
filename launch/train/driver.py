"""The driver process of a run: patches, the host's parser, Ray, the host's training loop.

Started by the supervisor with ``APRIL_*`` in its environment and the host's flags as arguments. It writes how it
ended to ``error.json`` in the run directory when it failed; the supervisor tells the user.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import traceback
from argparse import Namespace
from pathlib import Path
from typing import Any

from april.errors import AprilError
from april.hosts import Host
from april.launch.train import cluster, flags, watchdog
from april.patches import boot, receipts
from april.patches.core import Process
from april.patches.table import wanted
from april.telemetry.events import emit


def main() -> int:
    """Run to the end; returns the exit code."""
    run_dir = Path(os.environ["APRIL_RUN_DIR"])
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _train(run_dir)
    except KeyboardInterrupt:
        return 130
    except AprilError as error:
        _report(run_dir, str(error), error.exit_code)
        return error.exit_code
    except BaseException as error:
        traceback.print_exc()
        _report(run_dir, f"{type(error).__name__}: {_first_line(error)}", 1)
        return 1
    return 0


def _train(run_dir: Path) -> None:
    boot.install_driver()
    host = _host()
    starting = threading.Thread(target=cluster.preload, daemon=True)
    starting.start()
    args = flags.parse(host, sys.argv[1:])
    (run_dir / "config.json").write_text(json.dumps(vars(args), default=str, indent=1, sort_keys=True))
    emit("parsed")
    with cluster.started(args):
        emit("cluster")
        watch = watchdog.Watchdog(run_dir, tolerate_engines=bool(getattr(args, "use_fault_tolerance", False)))
        host.train(args, functools.partial(_ready, args, run_dir, watch))
        watch.stop()
    emit("finished")


def _ready(args: Namespace, run_dir: Path, watch: watchdog.Watchdog) -> None:
    """All processes are up: refuse to train unless each reported the patches that it must have."""
    found = receipts.verify(run_dir, wanted(os.environ["APRIL_HOST"], os.environ["APRIL_DEVICE"]), _processes(args))
    emit("ready", processes={receipt.role.value: receipt.pid for receipt in found})
    watch.start(found)


def _processes(args: Namespace) -> list[Process]:
    """The kinds of process that this run has."""
    kinds = [Process.DRIVER, Process.ROLLOUT_MANAGER]
    if not args.debug_train_only:
        kinds += [Process.ENGINE, Process.TOKENIZER, Process.SCHEDULER]
    if not args.debug_rollout_only:
        kinds.append(Process.TRAIN_ACTOR)
    return kinds


def _host() -> Host:
    from april.hosts.resolve import from_environment

    return from_environment(os.environ)


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _first_line(error: BaseException) -> str:
    """The cause in one line: Ray puts the remote traceback first and the cause last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _report(run_dir: Path, message: str, exit_code: int) -> None:
    target = run_dir / "error.json"
    if not target.exists():
        target.write_text(json.dumps({"message": message, "exit_code": exit_code}))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Ray's and torch's threads have nothing left to do
