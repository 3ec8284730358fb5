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
from argparse import Namespace
from pathlib import Path
from typing import Any

from april.hosts import Host
from april.launch.train import cluster, flags, outcome, speculation, watchdog
from april.patches import boot, receipts
from april.patches.core import Process
from april.patches.table import of_this_run
from april.telemetry.events import emit


def main() -> int:
    """Run to the end; returns the exit code."""
    run_dir = Path(os.environ["APRIL_RUN_DIR"])
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _train(run_dir)
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        return outcome.report(run_dir, error)
    return 0


def _train(run_dir: Path) -> None:
    boot.install_driver()
    host = _host()
    starting = threading.Thread(target=cluster.preload, daemon=True)
    starting.start()
    asynchronous = os.environ.get("APRIL_ASYNC") == "1"
    args = flags.parse(host, sys.argv[1:], asynchronous)
    (run_dir / "config.json").write_text(json.dumps(vars(args), default=str, indent=1, sort_keys=True))
    emit("parsed")
    with cluster.started(args, host):
        emit("cluster")
        watch = watchdog.Watchdog(run_dir, tolerate_engines=bool(getattr(args, "use_fault_tolerance", False)))
        try:
            host.train(args, functools.partial(_ready, args, run_dir, watch), asynchronous)
        except Exception as error:
            # Now: the processes that die while Ray shuts down are not the cause.
            outcome.report(run_dir, error, started=True)
            raise
        finally:
            watch.stop()
    emit("finished")


def _ready(args: Namespace, run_dir: Path, watch: watchdog.Watchdog) -> None:
    """All processes are up: refuse to train unless each reported the patches that it must have."""
    found = receipts.verify(run_dir, of_this_run(), expected(args))
    speculation.verify(run_dir)
    emit("ready", processes={receipt.role.value: receipt.pid for receipt in found})
    watch.start(found)


def expected(args: Namespace) -> dict[Process, int]:
    """How many processes of each kind this run has at least."""
    kinds = {Process.DRIVER: 1, Process.ROLLOUT_MANAGER: 1}
    if not (args.debug_train_only or getattr(args, "rollout_external", False)):
        engines = max(1, args.rollout_num_gpus // args.rollout_num_gpus_per_engine)
        kinds |= {Process.ENGINE: engines, Process.TOKENIZER: engines, Process.SCHEDULER: engines}
    if not args.debug_rollout_only:
        kinds[Process.TRAIN_ACTOR] = args.actor_num_nodes * args.actor_num_gpus_per_node
    return kinds


def _host() -> Host:
    from april.hosts.resolve import from_environment

    return from_environment(os.environ)


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Ray's and torch's threads have nothing left to do
