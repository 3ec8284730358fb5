"""What a running Ray cluster has: ``python -m april.launch.run.ray_nodes ADDRESS`` prints its nodes as JSON.

A process of its own: Ray's client has threads, which a supervisor must not have, and may wait for long.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from april.errors import UsageError

LIMIT_S = 4.0
ALIVE = 0
"""As Ray's GcsNodeInfo numbers it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A living node: its address, and what it has in all. A device of the hosts is a GPU and a CPU of Ray's."""

    address: str
    gpus: float
    cpus: float

    @property
    def devices(self) -> float:
        """How many it can give to trainer and engines."""
        return min(self.gpus, self.cpus)


def ask(address: str) -> list[Node]:
    """The living nodes of the cluster at ``HOST:PORT``.

    Raises:
        UsageError: when it does not answer in time.
    """
    command = [sys.executable, "-m", __name__, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"RAY_ADDRESS {address}: no answer within {LIMIT_S:.0f} s; unset it to start a Ray") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(f"RAY_ADDRESS {address}: its nodes cannot be listed ({reason}); unset it to start a Ray")
    return [Node(**node) for node in json.loads(done.stdout.splitlines()[-1])]


def check(address: str, nodes: int, gpus_per_node: int) -> None:
    """Refuse a cluster that has too few nodes of so many devices.

    Raises:
        UsageError: with what it has and what the run needs.
    """
    found = ask(address)
    fitting = [node for node in found if node.devices >= gpus_per_node]
    if len(fitting) < nodes:
        has = ", ".join(f"{node.address} ({node.gpus:g} GPUs, {node.cpus:g} CPUs)" for node in found) or "none"
        raise UsageError(
            f"RAY_ADDRESS {address}: {nodes} node(s) with {gpus_per_node} GPUs and as many CPUs are needed, there are: "
            f"{has}; start more (ray start --address ... --num-gpus N), or lower --nodes"
        )


def main(address: str) -> None:
    """Print the living nodes."""
    raylet: Any = importlib.import_module("ray._raylet")
    nodes = raylet.GcsClient(address=address).get_all_node_info(timeout=LIMIT_S).values()
    living = []
    for node in nodes:
        if node.state == ALIVE:
            has = dict(node.resources_total)
            living.append(asdict(Node(node.node_manager_address, has.get("GPU", 0.0), has.get("CPU", 0.0))))
    print(json.dumps(living))


if __name__ == "__main__":
    main(sys.argv[1])
