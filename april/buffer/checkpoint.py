"""The buffer's file beside the host's checkpoint of its data source: written whole or not, read whole or refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from april.errors import AprilError

FORMAT = "april-buffer"
FORMAT_VERSION = 1


def path_of(folder: str | os.PathLike[str], rollout_id: int | None) -> Path:
    """Where the buffer of a checkpoint lies."""
    return Path(folder) / "rollout" / f"april_buffer_{rollout_id}.pkl"


def write(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` to ``path``: synced to disk, then moved into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with open(draft, "wb") as file:
            pickle.dump({"format": FORMAT, "format_version": FORMAT_VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """The state in ``path``, which is trusted as the checkpoint around it is (a pickle).

    Raises AprilError, leaving the file alone, where it is cut off, foreign or of another version.
    """
    try:
        with open(path, "rb") as file:
            state = pickle.load(file)
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError) as error:
        raise AprilError(f"{path} is damaged or no buffer of ours ({error}); it was left as it is") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise AprilError(f"{path} is no buffer of ours; it was left as it is")
    if state["format_version"] != FORMAT_VERSION:
        raise AprilError(f"{path} has format {state['format_version']}, this version reads {FORMAT_VERSION}")
    return state
