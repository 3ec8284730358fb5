"""More Ray nodes on this machine: what runs on several then runs here, on a CPU, whose devices are only counted.

Ray's own entry points do not serve: ``ray start`` joins no cluster on the loopback address, and ``ray.cluster_utils``
leaves the address where other programs of this machine would find it and join.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from april.errors import UsageError

LOOPBACK = "127.0.0.1"


def shares(devices: int, nodes: int) -> list[int]:
    """The devices of each node: as equal as can be, the first have more.

    Raises:
        UsageError: where a node would have none.
    """
    if devices < nodes:
        raise UsageError(f"--nodes {nodes}: trainer and engines have {devices} devices in all; lower it, or raise them")
    return [devices // nodes + (node < devices % nodes) for node in range(nodes)]


@contextlib.contextmanager
def joined(devices: Sequence[int], cpus_per_device: int, object_store_bytes: int) -> Iterator[None]:
    """A node with so many devices each, joined to the cluster that this process is in; ended at the end, newest first.

    Their processes are children of this one. Ports are those that the system finds free.
    """
    with contextlib.ExitStack() as stack:
        for count in devices:
            node = _node(count, cpus_per_device * count, object_store_bytes)
            stack.callback(node.kill_all_processes, check_alive=False, allow_graceful=True, wait=True)
        yield


def _node(devices: int, cpus: int, object_store_bytes: int) -> Any:
    import ray
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    parameters = RayParams(
        gcs_address=ray.get_runtime_context().gcs_address,
        node_ip_address=LOOPBACK,
        num_gpus=devices,
        num_cpus=cpus,
        object_store_memory=object_store_bytes,
        node_manager_port=0,
        min_worker_port=0,
        max_worker_port=0,
        dashboard_agent_listen_port=0,
        include_log_monitor=False,  # one is enough for a machine
    )
    return Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=False)
