"""A buffer as a parquet table: one row for each response."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from april.buffer.reader import Reader
from april.core import Leg, versions_of
from april.errors import UsageError

BATCH = 256


def write(buffer: Reader, out: Path) -> int:
    """Write all that is held, in order of priority; returns the number of rows. ``out`` is whole, or not there.

    Raises:
        UsageError: where ``out`` exists or cannot be made, or pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError("april buffer export needs pyarrow: pip install pyarrow") from error
    if out.exists():
        raise UsageError(f"{out} exists: give a new file")
    schema = _schema(pa)
    draft = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    count, rows = 0, _rows(buffer)
    try:
        with pq.ParquetWriter(draft, schema) as writer:
            while batch := list(itertools.islice(rows, BATCH)):
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                count += len(batch)
        os.replace(draft, out)
    except OSError as error:
        raise UsageError(f"{out}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return count


def _schema(pa: Any) -> Any:
    numbers = pa.list_(pa.int64())
    leg = pa.struct([(name, pa.int64()) for name in ("policy_version", "start", "length", "rollout_id")])
    columns = {
        "group": pa.int64(),
        "sample": pa.int64(),
        "state": pa.string(),
        "response_length": pa.int64(),
        "tokens": numbers,
        "log_probs": pa.list_(pa.float64()),
        "loss_mask": numbers,
        "legs": pa.list_(leg),
        "versions": numbers,
        "reward": pa.float64(),
        "prompt": pa.string(),
        "text": pa.string(),
    }
    return pa.schema(list(columns.items()))


def _rows(buffer: Reader) -> Iterator[dict[str, Any]]:
    for entry in buffer.index.entries():
        for sample in buffer.members(entry):
            yield _row(entry.index, sample)


def _row(group: int, sample: dict[str, Any]) -> dict[str, Any]:
    legs = ((sample.get("metadata") or {}).get("april") or {}).get("legs", [])
    reward = sample.get("reward")
    prompt = sample.get("prompt")
    return {
        "group": group,
        "sample": sample.get("index"),
        "state": sample.get("status"),
        "response_length": sample.get("response_length"),
        "tokens": sample.get("tokens"),
        "log_probs": sample.get("rollout_log_probs"),
        "loss_mask": sample.get("loss_mask"),
        "legs": legs,
        "versions": versions_of(map(Leg.from_dict, legs)),
        # A reward may be a dictionary, a prompt a list of messages.
        "reward": float(reward) if isinstance(reward, int | float) else None,
        "prompt": prompt if isinstance(prompt, str) else str(prompt),
        "text": sample.get("response"),
    }
