"""Everything that the host logs, kept in ``$APRIL_RUN_DIR/metrics.jsonl``: one line for each call of its logger."""

from __future__ import annotations

import time
from typing import Any

from april.telemetry.events import append
from april.telemetry.offpolicy import TrainerWatch

FILE = "metrics.jsonl"
WATCH = TrainerWatch()


def record(args: Any, metrics: dict[str, Any], step_key: str) -> None:
    """Append what the host logs under ``metrics[step_key]``. Takes the arguments of the hosts' own log function."""
    metrics = {**metrics, **WATCH.derive(metrics)}
    append(FILE, {"time": time.time(), "step_key": step_key, "step": metrics.get(step_key), **metrics})
