"""Ray for one run: an own local cluster, of ``APRIL_NODES`` nodes, unless ``RAY_ADDRESS`` names one."""

from __future__ import annotations

import contextlib
import os
from argparse import Namespace
from collections.abc import Iterator

from april.hosts import Host
from april.launch.train import cpu, memory, nodes

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
    others: list[int] = []
    if os.environ.get("RAY_ADDRESS"):
        ray.init(runtime_env=runtime_env)
    else:
        on_cpu = os.environ["APRIL_DEVICE"] == "cpu"
        first, *others = nodes.shares(_devices(args), int(os.environ.get("APRIL_NODES", "1")))
        ray.init(
            address="local",
            num_gpus=first if on_cpu else None,
            num_cpus=CPUS_PER_DEVICE * first if on_cpu else None,
            object_store_memory=OBJECT_STORE_BYTES if on_cpu else None,
            include_dashboard=False,
            runtime_env=runtime_env,
            _temp_dir=os.environ["APRIL_RAY_DIR"],
        )
    try:
        with nodes.joined(others, CPUS_PER_DEVICE, OBJECT_STORE_BYTES):
            yield
    finally:
        ray.shutdown()


def _devices(args: Namespace) -> int:
    """How many devices the placement groups may ask for in all; on a CPU they are only counted."""
    trainer, engines = args.actor_num_nodes * args.actor_num_gpus_per_node, args.rollout_num_gpus or 0
    return int(max(trainer, engines) if args.colocate else trainer + engines)


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
