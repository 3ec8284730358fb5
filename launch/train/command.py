"""``april train``: our own flags, the checks that need no heavy import, and the run directory."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from april.config import REWARDS
from april.errors import UsageError
from april.hosts import Host
from april.hosts.resolve import resolve
from april.launch import folders
from april.launch.arguments import UsageParser
from april.launch.train import cpu, memory, preflight, prometheus, speculation, supervisor, versions
from april.patches.core import Feature
from april.telemetry.events import emit

ROLLOUT = {
    # Without priorities a long resumed request, sent first, is served last: it takes longest to arrive.
    "on": [
        "--partial-rollout",
        "--rollout-function-path",
        "april.rollout.generate_rollout",
        "--data-source-path",
        "april.buffer.PartialDataSource",
        "--sglang-enable-priority-scheduling",
        "--sglang-disable-priority-preemption",
    ],
    "off": ["--rollout-function-path", "april.rollout.generate_rollout_sync"],
}


PYTHON = [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else [])]
"""Without the working directory on the path, as for any script: a file ``ray.py`` there must not become Ray."""


def parser() -> argparse.ArgumentParser:
    """The parser of our own flags; all others are the host's."""
    made = UsageParser(
        prog="april train",
        allow_abbrev=False,
        description="The host's training loop with the overlay. All other flags are the host's (slime, Megatron, "
        "--sglang-*) and ours that reach its workers (--april-*); docs/train.md lists ours.",
    )
    made.add_argument("--host", default="auto", help="auto, slime or miles (default: a slime that is here, else miles)")
    made.add_argument("--slime-dir", metavar="DIR", help="slime's source tree; default: $SLIME_DIR")
    made.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "rocm"])
    made.add_argument("--april", default="on", choices=["on", "off"], help="off: the host's own rollout, unchanged")
    made.add_argument(
        "--async",
        dest="asynchronous",
        action="store_true",
        help="the host's asynchronous loop: the next rollout is generated while this one is trained",
    )
    made.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="N",
        help="Ray nodes that a run on a CPU starts on this machine, its devices spread over them (default: 1)",
    )
    made.add_argument(
        "--memory-backend",
        default="auto",
        choices=["auto", "april", "tms"],
        help="who releases memory between the phases (--colocate, --offload): torch_memory_saver, april.memory, or the "
        "first where it has a library for the device, else the second (default: auto)",
    )
    speculation.add_arguments(made)
    made.add_argument(
        prometheus.FLAG,
        default="0",
        metavar="[ADDRESS:]PORT",
        help="serve the newest value of every metric to Prometheus there; the address is 127.0.0.1 unless given, auto "
        "finds a free port, 0 is off (default: 0)",
    )
    made.add_argument("--run-dir", metavar="DIR", help="where the run writes (default: runs/<time>-<id>)")
    made.add_argument("--quiet", action="store_true", help="host output to the run directory's log only")
    made.add_argument(
        "--dry-run", action="store_true", help="print the host's flags and the environment, start nothing"
    )
    return made


def run(argv: list[str]) -> int:
    """Check, start and supervise a run; returns the exit code.

    Raises:
        UsageError: for what is wrong before anything has started.
    """
    ours, theirs = parser().parse_known_args(argv)
    host = resolve(ours.host, ours.slime_dir, os.environ)
    if ours.asynchronous and host.name == "miles":
        raise UsageError("--async: miles' wheel carries no asynchronous training loop; use --host slime")
    device = preflight.device(ours.device)
    _check_nodes(ours.nodes, device)
    saver = memory.chosen(ours.memory_backend, device, theirs)
    speculating = speculation.chosen(ours, host, theirs)
    flags = host_flags(host, device, ours.april, [*speculation.flags(speculating), *theirs], ours.nodes)
    preflight.check(flags, device)
    preflight.check_disk(ours.run_dir)
    correction = dict(preflight.values(flags)).get("--april-correction", "none")
    features = versions.needed(device, ours.april == "on", correction in ("tis", "decoupled"), speculating is not None)
    interrupt = dict(preflight.values(flags)).get("--april-interrupt", "abort")
    features |= {Feature.INTERRUPT} if interrupt != "abort" and ours.april == "on" else set()
    for line in versions.check(host, device, features):
        print(f"april: {line}", file=sys.stderr)
    overlay = {**overlay_environment(host, device, ours.april), **memory.environment(saver)}
    overlay |= {**speculation.environment(speculating, None), "APRIL_INTERRUPT": interrupt}
    if ours.dry_run:
        print("\n".join([*(f"{name}={value}" for name, value in overlay.items()), shlex.join(flags)]))
        return 0
    exporter = prometheus.exporter(ours.april_prometheus_port)
    memory.prepare(saver)
    run_dir = folders.empty("--run-dir", ours.run_dir, f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}")
    os.environ["APRIL_RUN_DIR"] = str(run_dir)
    emit("started")
    environment = {**os.environ, **overlay, **speculation.environment(speculating, run_dir)}
    environment |= {"APRIL_ASYNC": "1" if ours.asynchronous else "0", "APRIL_NODES": str(ours.nodes)}
    print(f"april: {host.name} {host.version} on {device}, run directory {run_dir}", file=sys.stderr)
    if host.lacks:
        lacking = "; ".join(f"{lack.feature} ({lack.because})" for lack in host.lacks)
        print(f"april: {host.name} lacks {lacking}", file=sys.stderr)
    command = [*PYTHON, "-m", "april.launch.train.driver", *flags]
    return _supervised(command, environment, run_dir, not ours.quiet, exporter)


def _supervised(
    command: list[str],
    environment: Mapping[str, str],
    run_dir: Path,
    echo: bool,
    exporter: prometheus.Exporter | None,
) -> int:
    """Run to the end, its metrics served beside it, and report; returns the exit code."""
    if exporter is not None:
        print(f"april: metrics at {exporter.url}", file=sys.stderr)
    beside = exporter.serving(run_dir) if exporter else None
    return supervisor.run(command, environment, run_dir, echo, beside, _report)


def _report(run_dir: Path) -> None:
    from april.launch.train import report

    report.write(run_dir)


def _check_nodes(nodes: int, device: str) -> None:
    if nodes < 1:
        raise UsageError(f"--nodes {nodes}: at least 1")
    if nodes > 1 and (device != "cpu" or os.environ.get("RAY_ADDRESS")):
        which = "RAY_ADDRESS has its own" if device == "cpu" else f"on {device} this machine is one"
        raise UsageError(f"--nodes {nodes}: nodes are started here for a run on a CPU only; {which}; leave it out")


def host_flags(host: Host, device: str, april: str, theirs: list[str], nodes: int = 1) -> list[str]:
    """The complete flags for the host's parser; the user's come last and win."""
    by_samples = dict(preflight.values(theirs)).get("--april-stop") == "samples"
    rewards = ["--custom-reward-post-process-path", REWARDS] if by_samples else []
    given = cpu.flags(nodes) + host.cpu_flags() if device == "cpu" else []
    return [*given, *ROLLOUT[april], *rewards, *theirs]


def overlay_environment(host: Host, device: str, april: str) -> dict[str, str]:
    """What every process of the run gets; what the user has set wins over the defaults of a CPU."""
    root = host.paths()[0]
    search = [str(path) for path in host.paths()] + [path for path in [os.environ.get("PYTHONPATH")] if path]
    defaults: Mapping[str, str] = {**(cpu.ENVIRONMENT if device == "cpu" else {}), **host.environment(device)}
    return {
        **{name: os.environ.get(name, value) for name, value in defaults.items()},
        "PYTHONPATH": os.pathsep.join(search),
        "APRIL_HOST": host.name,
        "APRIL_HOST_ROOT": str(root),
        "APRIL_HOST_VERSION": host.version,
        "APRIL_DEVICE": device,
        "APRIL_ROLLOUT": april,
        "APRIL_RUN_ID": uuid.uuid4().hex[:8],
    }
