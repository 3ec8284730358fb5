"""Ray on this node: the cluster that RAY_ADDRESS names, and Rays that run already."""

from __future__ import annotations

from .check import Check, fail, ok, warn
from .facts import Facts


def checks(facts: Facts) -> list[Check]:
    """The checks of this module."""
    return [_address(facts), _running(facts)]


def _address(facts: Facts) -> Check:
    name, address = "Ray cluster", facts.sockets.ray_address
    if address is None:
        return ok(name, "RAY_ADDRESS is not set: each run starts a Ray of its own")
    if facts.sockets.ray_answer:
        said = f"nothing answers at RAY_ADDRESS {address} ({facts.sockets.ray_answer})"
        return fail(name, said, "start that cluster, or unset RAY_ADDRESS")
    if address.startswith(("http://", "https://")):
        said = f"RAY_ADDRESS {address} is the address of a job server"
        return warn(name, said, "unset it for april train, or give the cluster's own address, HOST:6379")
    return ok(name, f"RAY_ADDRESS is {address}")


def _running(facts: Facts) -> Check:
    """Two Rays on one node count the same cores and GPUs twice."""
    name, rays = "Ray on this node", facts.sockets.rays
    nodes = sorted(pid for pid, program in rays.items() if program == "raylet")
    if not nodes:
        return ok(name, "none runs")
    said = f"{len(nodes)} run(s): raylet {', '.join(map(str, nodes))}"
    if facts.sockets.ray_address:
        return ok(name, said)
    remedy = "wait for it, end it (ray stop, or its run), or join it by RAY_ADDRESS"
    return warn(name, f"{said}; a run would start another that counts the same cores and GPUs", remedy)
