"""Receipts: each process of a run writes which patches are live in it, and the driver reads them before it trains.

A receipt is ``RUN_DIR/receipts/<role>-<machine>-<pid>.json``: ``{"role", "machine", "pid", "raylet", "host", "device",
"patches", "skipped", "arm_ms", "apply_ms", "time"}``, rewritten atomically whenever a patch goes live. ``machine`` is
the host name, without which equal pids of two machines would be one process; ``raylet`` the pid of the Ray node that
the process belongs to; ``skipped`` tells why an optional patch is not live; ``arm_ms`` is what arming cost the process,
``apply_ms`` what each patch did (milliseconds). A process that refuses to run half-patched leaves
``fault-<machine>-<pid>.json`` with the reason.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from april.errors import AprilError
from april.patches import live, process
from april.patches.core import Patch, Process

arm_ms = 0.0
"""Milliseconds that arming the patches took in this process."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one process reported; its pid is one of its machine."""

    role: Process
    machine: str
    pid: int
    patches: frozenset[str]
    skipped: Mapping[str, str] = field(default_factory=dict)


def machine() -> str:
    """The name of this node, which the run's nodes tell themselves apart by."""
    return socket.gethostname()


def write() -> None:
    """Write this process's receipt, if it belongs to a run and knows its role."""
    role = process.role()
    if role is not None:
        body = {
            "role": role.value,
            "machine": machine(),
            "pid": os.getpid(),
            "raylet": int(os.environ.get("RAY_RAYLET_PID", 0)) or None,
            "host": os.environ.get("APRIL_HOST"),
            "device": os.environ.get("APRIL_DEVICE"),
            "patches": live.live(),
            "skipped": live.skipped(),
            "arm_ms": round(arm_ms, 3),
            "apply_ms": {name: round(spent, 3) for name, spent in live.milliseconds().items()},
            "time": time.time(),
        }
        _write(f"{role.value}-{machine()}-{os.getpid()}.json", body)


def write_fault(reason: str) -> None:
    """Leave the reason why this process does not run; where the run's processes swallow errors, the driver finds it."""
    body = {"machine": machine(), "pid": os.getpid(), "reason": reason, "time": time.time()}
    _write(f"fault-{machine()}-{os.getpid()}.json", body)


def _write(name: str, body: dict[str, Any]) -> None:
    directory = os.environ.get("APRIL_RUN_DIR")
    if directory is None:
        return
    target = Path(directory, "receipts", name)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps(body))
    partial.replace(target)


def faults(run_dir: Path) -> list[str]:
    """Why processes of a run refused to run, oldest first."""
    bodies = [json.loads(path.read_text()) for path in run_dir.glob("receipts/fault-*.json")]
    return [body["reason"] for body in sorted(bodies, key=lambda body: float(body["time"]))]


def read(run_dir: Path) -> list[Receipt]:
    """All receipts of a run."""
    paths = [path for path in sorted(run_dir.glob("receipts/*.json")) if not path.name.startswith("fault-")]
    bodies = [json.loads(path.read_text()) for path in paths]
    return [
        Receipt(
            role=Process(body["role"]),
            machine=body["machine"],
            pid=int(body["pid"]),
            patches=frozenset(body["patches"]),
            skipped=body.get("skipped", {}),
        )
        for body in bodies
    ]


def verify(run_dir: Path, patches: Iterable[Patch], processes: Mapping[Process, int]) -> list[Receipt]:
    """Check that at least so many processes of each kind reported, each all the patches that must be live in it.

    An optional patch may be missing where the process says why. Returns the receipts.

    Raises:
        AprilError: naming the process and the patch that is missing.
    """
    if reasons := faults(run_dir):
        raise AprilError(reasons[0])
    receipts = read(run_dir)
    rows = list(patches)
    for kind, count in processes.items():
        reported = [receipt for receipt in receipts if receipt.role is kind]
        if len(reported) < count:
            raise AprilError(
                f"{len(reported)} of {count} {kind.value} processes reported their patches in {run_dir / 'receipts'}: "
                "the others started without the overlay; see the logs in the run directory, and check that april is "
                "installed where they run, with the run directory shared"
            )
        for receipt in reported:
            if missing := _missing(rows, receipt):
                raise AprilError(
                    f"{kind.value} process {receipt.pid} on {receipt.machine} runs without {', '.join(missing)}: "
                    "refusing to train half-patched; its log in the run directory tells why"
                )
    return receipts


def _missing(rows: list[Patch], receipt: Receipt) -> list[str]:
    wanted = {patch.name for patch in rows if receipt.role in patch.processes}
    excused = {patch.name for patch in rows if patch.optional and patch.name in receipt.skipped}
    return sorted(wanted - receipt.patches - excused)
