"""Receipts: each process of a run writes which patches are live in it, and the driver reads them before it trains.

A receipt is ``RUN_DIR/receipts/<role>-<pid>.json``: ``{"role", "pid", "host", "device", "patches", "time"}``, rewritten
atomically whenever a patch goes live.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from april.errors import AprilError
from april.patches import core, process
from april.patches.core import Patch, Process


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one process reported."""

    role: Process
    pid: int
    patches: frozenset[str]


def write() -> None:
    """Write this process's receipt, if it belongs to a run and knows its role."""
    directory, role = os.environ.get("APRIL_RUN_DIR"), process.role()
    if directory is None or role is None:
        return
    body = {
        "role": role.value,
        "pid": os.getpid(),
        "host": os.environ.get("APRIL_HOST"),
        "device": os.environ.get("APRIL_DEVICE"),
        "patches": core.live(),
        "time": time.time(),
    }
    target = Path(directory, "receipts", f"{role.value}-{os.getpid()}.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".tmp")
    partial.write_text(json.dumps(body))
    partial.replace(target)


def read(run_dir: Path) -> list[Receipt]:
    """All receipts of a run."""
    bodies = [json.loads(path.read_text()) for path in sorted(run_dir.glob("receipts/*.json"))]
    return [Receipt(Process(body["role"]), int(body["pid"]), frozenset(body["patches"])) for body in bodies]


def verify(run_dir: Path, patches: Iterable[Patch], processes: Mapping[Process, int]) -> list[Receipt]:
    """Check that at least so many processes of each kind reported, each all the patches that must be live in it.

    Returns the receipts.

    Raises:
        AprilError: naming the process and the patch that is missing.
    """
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
        wanted = {patch.name for patch in rows if kind in patch.processes}
        for receipt in reported:
            if missing := sorted(wanted - receipt.patches):
                raise AprilError(
                    f"{kind.value} process {receipt.pid} runs without {', '.join(missing)}: refusing to train "
                    "half-patched; its log in the run directory tells why"
                )
    return receipts
