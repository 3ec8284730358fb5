"""Ray for one run: an own local cluster unless the user's environment names one (``RAY_ADDRESS``)."""

from __future__ import annotations

import contextlib
import os
from argparse import Namespace
from collections.abc import Iterator

from april.hosts import Host
from april.launch.train import cpu, memory

WORKER_HOOK = "april.patches.boot.install"
OBJECT_STORE_BYTES = 512 * 1024**2
CPUS_PER_DEVICE = 8
"""Logical: actors ask for fractions, and Ray's own tasks must not wait for them."""


def preload() -> None:
    """Import Ray while the host's parser is busy."""
    import ray  # noqa: F401


@contextlib.contextmanager
def started(args: Namespace, host: Host) -> Iterator[None]:
    """Ray with the hook in every worker; shut down at the end.

    A cluster of our own has its session in ``APRIL_RAY_DIR``, which the supervisor made and removes.
    """
    import ray

    runtime_env = {"worker_process_setup_hook": WORKER_HOOK, "env_vars": _environment(host)}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(runtime_env=runtime_env)
    else:
        on_cpu = os.environ["APRIL_DEVICE"] == "cpu"
        ray.init(
            address="local",
            num_gpus=_devices(args) if on_cpu else None,
            num_cpus=CPUS_PER_DEVICE * _devices(args) if on_cpu else None,
            object_store_memory=OBJECT_STORE_BYTES if on_cpu else None,
            include_dashboard=False,
            runtime_env=runtime_env,
            _temp_dir=os.environ["APRIL_RAY_DIR"],
        )
    try:
        yield
    finally:
        ray.shutdown()


def _devices(args: Namespace) -> int:
    """How many devices the placement groups may ask for in all; on a CPU they are only counted."""
    return int(args.actor_num_nodes * args.actor_num_gpus_per_node + (args.rollout_num_gpus or 0))


def _environment(host: Host) -> dict[str, str]:
    """What the workers of a cluster that is not ours would not inherit."""
    device = os.environ["APRIL_DEVICE"]
    launched = os.environ.get("APRIL_ENVIRONMENT", "").split(",")
    names = {
        "PYTHONPATH",
        "SPECROLLOUT",
        "OPENBLAS_NUM_THREADS",
        memory.REGISTER,
        *launched,
        *host.environment(device),
        *(cpu.ENVIRONMENT if device == "cpu" else ()),
    }
    return {name: value for name, value in os.environ.items() if name.startswith("APRIL_") or name in names}
