"""The machine: cores, memory, shared memory, disk, NUMA, limits, ports."""

from __future__ import annotations

from .check import Check, fail, ok, unknown, warn
from .facts import Facts
from .numbers import GIB, MIB, size
from .reading import Unread
from .reading.machine import UNLIMITED, Space
from .reading.sockets import RAY_PORTS, RAY_PROGRAMS

MEMORY_FAIL, MEMORY_WARN = 2 * GIB, 6 * GIB
"""Free memory. Judgement: a run's processes import torch several times over, and a model comes on top."""
SHM_CPU = 512 * MIB
"""The object store of a CPU run (launch/train/cluster.py)."""
SHM_GPU_FAIL, SHM_GPU_WARN = 1 * GIB, 10**10
"""NCCL's shared memory (its troubleshooting page: --shm-size=1g); Ray's REQUIRE_SHM_SIZE_THRESHOLD."""
DISK_FAIL, DISK_WARN = 2 * GIB, 10 * GIB
"""The first is what april train refuses to start below."""
SPILL_SHARE = 0.95
"""Ray stops writing objects to a disk that is fuller (docs.ray.io, ray-core/objects/object-spilling)."""
SOCKET_BYTES = 107
SESSION = "/april-ray-1234567-abcdefgh/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
"""What a run appends to the folder of temporary files; a UNIX socket's path has at most 107 bytes."""
FILES_WARN, FILES_RAISED = 4096, 65536
"""Ray raises the soft limit to the hard one, up to the second, and warns below the first (ray/_private/worker.py)."""
PORTS_FAIL, PORTS_WARN = 100, 2000
DOCKER = "docker run --shm-size=128g --ulimit memlock=-1"
"""As slime's page for AMD GPUs starts its container."""


def checks(facts: Facts) -> list[Check]:
    """The checks of this module."""
    disks = [_disk(facts, use) for use in ("runs", "temporary", "cache")]
    found = [_cores(facts), _memory(facts), _shm(facts), *disks, _socket_path(facts), _numa(facts), _open_files(facts)]
    locked = [] if facts.device.name == "cpu" else [_locked_memory(facts)]
    return [*found, *locked, _ephemeral(facts), *(_ray_port(facts, port) for port in RAY_PORTS)]


def _cores(facts: Facts) -> Check:
    cores = facts.machine.cores
    if cores < 2:
        return warn("cores", f"{cores}: trainer and engine take turns on it", "give the container or the job two cores")
    return ok("cores", str(cores))


def _memory(facts: Facts) -> Check:
    machine = facts.machine
    if isinstance(machine.memory_free, Unread):
        return unknown("memory", machine.memory_free.why, "run free -m to see what is left")
    limit = "" if machine.memory_limit is None else f", limited to {size(machine.memory_limit)} by the cgroup"
    total = "" if isinstance(machine.memory_total, Unread) else f" of {size(machine.memory_total)}"
    said = f"{size(machine.memory_free)} free{total}{limit}"
    remedy = "end what holds memory, or give the container or the job more"
    if machine.memory_free < MEMORY_FAIL:
        return fail("memory", f"{said}: too little for the processes of a run", remedy)
    return (
        warn("memory", f"{said}: little beside the processes of a run", remedy)
        if machine.memory_free < MEMORY_WARN
        else ok("memory", said)
    )


def _shm(facts: Facts) -> Check:
    name, shm = "shared memory", facts.machine.shm
    remedy = f"mount a larger /dev/shm, as {DOCKER.partition(' --ulimit')[0]} does, or delete what is left in it"
    if isinstance(shm, Unread):
        return fail(name, f"no /dev/shm ({shm.why})", "mount a tmpfs there, as docker run --shm-size=128g does")
    said = f"{size(shm.free)} of {size(shm.total)} free in /dev/shm"
    if not shm.writable:
        return fail(name, "/dev/shm may not be written by this user", "chmod 1777 /dev/shm")
    if facts.device.name == "cpu":
        less = shm.free < SHM_CPU
        return warn(name, f"{said}: Ray keeps its objects on the disk instead", remedy) if less else ok(name, said)
    if shm.free < SHM_GPU_FAIL:
        return fail(name, f"{said}: too little for NCCL", remedy)
    less = shm.free < SHM_GPU_WARN
    return warn(name, f"{said}: Ray wants 10 GB, else it keeps objects on the disk", remedy) if less else ok(name, said)


def _disk(facts: Facts, use: str) -> Check:
    name, space = f"disk: {use}", facts.machine.disks[use]
    move = {
        "runs": "name another disk by april train --run-dir",
        "temporary": "name another disk by TMPDIR",
        "cache": "name another disk by HF_HOME",
    }[use]
    if isinstance(space, Unread):
        return unknown(name, space.why, move)
    said = f"{size(space.free)} free at {space.path}"
    if not space.writable:
        refuse = fail if use == "temporary" else warn
        return refuse(name, f"{space.path} may not be written by this user", move)
    if space.free < DISK_FAIL and use != "cache":
        return fail(name, f"{said}: a run needs {size(DISK_FAIL)}", f"make room, or {move}")
    return _room(name, space, said, use, move)


def _room(name: str, space: Space, said: str, use: str, move: str) -> Check:
    if use == "temporary" and space.total and 1 - space.free / space.total > SPILL_SHARE:
        return warn(name, f"{said}: over 95% full, where Ray writes no more objects to it", f"make room, or {move}")
    if space.free < DISK_WARN:
        return warn(name, f"{said}: room for few checkpoints", f"make room, or {move}")
    return ok(name, said)


def _socket_path(facts: Facts) -> Check:
    name, space = "socket path", facts.machine.disks["temporary"]
    if isinstance(space, Unread):
        return unknown(name, space.why, "set TMPDIR to a folder with a short path")
    length = len((space.path + SESSION).encode())
    if length > SOCKET_BYTES:
        said = f"Ray's sockets below {space.path} would have {length} bytes in their path, {SOCKET_BYTES} is the most"
        return fail(name, said, "set TMPDIR to a folder with a shorter path, such as /tmp")
    return ok(name, f"{length} of {SOCKET_BYTES} bytes below {space.path}")


def _numa(facts: Facts) -> Check:
    """docs.sglang.io/platforms/amd_gpu.html: with AMD GPUs, auto-balancing is to be off."""
    name, machine = "NUMA", facts.machine
    remedy = "sudo sh -c 'echo 0 > /proc/sys/kernel/numa_balancing'"
    nodes = "an unknown number of nodes" if isinstance(machine.numa_nodes, Unread) else f"{machine.numa_nodes} node(s)"
    if isinstance(machine.numa_balancing, Unread):
        if facts.device.name == "rocm":
            return unknown(name, machine.numa_balancing.why, f"see that it is off: {remedy}")
        return ok(name, f"{nodes}, auto-balancing not offered by the kernel")
    if machine.numa_balancing and facts.device.name == "rocm":
        return warn(name, f"{nodes}, auto-balancing is on", remedy)
    return ok(name, f"{nodes}, auto-balancing {'on' if machine.numa_balancing else 'off'}")


def _open_files(facts: Facts) -> Check:
    soft, hard = facts.machine.open_files
    unlimited = hard == UNLIMITED or soft == UNLIMITED
    reach = FILES_RAISED if unlimited else max(soft, min(hard, FILES_RAISED))
    if reach < FILES_WARN:
        return warn(
            "open files", f"at most {reach}; Ray wants 8192", "raise the hard limit: ulimit -Hn 65536, or limits.conf"
        )
    return ok("open files", f"{'no limit' if soft == UNLIMITED else soft}, {reach} within reach")


def _locked_memory(facts: Facts) -> Check:
    soft, _ = facts.machine.locked_memory
    if soft != UNLIMITED:
        return warn(
            "locked memory",
            f"limited to {size(soft)}; RDMA and pinned buffers need more",
            f"ulimit -l unlimited; {DOCKER}",
        )
    return ok("locked memory", "no limit")


def _ephemeral(facts: Facts) -> Check:
    name, span, used = "ports", facts.sockets.ephemeral, facts.sockets.in_use
    remedy = "end what holds them, or widen net.ipv4.ip_local_port_range by sysctl"
    for found in (span, used):
        if isinstance(found, Unread):
            return unknown(name, found.why, "run ss -tan to see what is in use")
    assert isinstance(span, tuple)
    assert isinstance(used, int)
    left = span[1] - span[0] + 1 - used
    said = f"{left} of {span[0]} to {span[1]} are free"
    if left < PORTS_FAIL:
        return fail(name, f"{said}: too few for Ray's workers and the engines", remedy)
    return warn(name, f"{said}: few for Ray's workers and the engines", remedy) if left < PORTS_WARN else ok(name, said)


def _ray_port(facts: Facts, port: int) -> Check:
    """april train's own Ray takes free ports; a cluster that the user starts by hand takes these."""
    name, holder = f"port {port}", facts.sockets.held.get(port)
    if holder is None:
        return ok(name, f"free ({RAY_PORTS[port]})")
    who = holder.name if holder.pid is None else f"{holder.name} (process {holder.pid})"
    if holder.name in RAY_PROGRAMS or "dashboard" in holder.name:
        return ok(name, f"held by Ray: {who}")
    other = "--port" if port == 6379 else "--dashboard-port"
    return warn(name, f"held by {who}; {RAY_PORTS[port]} takes it by default", f"give ray start another: {other}=N")
