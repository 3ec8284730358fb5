"""Where buffers lie: the one of a run, those in the host's checkpoints, and the pickles of earlier versions."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from april.errors import AprilError
from april.telemetry.events import RUN_DIR

FORMAT = "april-buffer"
FORMAT_VERSION = 1


def live(given: str | None, save: str | os.PathLike[str] | None) -> Path | None:
    """The folder of a run's buffer: as given, else under ``--save``, else in the run directory, else none.

    Under ``--save`` a restarted run finds it, and its payloads share their disk space with those of the checkpoints.
    """
    if given:
        return Path(given)
    if save:
        return Path(save) / "rollout" / "april_buffer"
    run_dir = os.environ.get(RUN_DIR)
    return Path(run_dir) / "buffer" if run_dir else None


def path_of(folder: str | os.PathLike[str], rollout_id: int | None) -> Path:
    """The folder of a checkpoint's buffer."""
    return Path(folder) / "rollout" / f"april_buffer_{rollout_id}"


def read_pickle(path: Path) -> dict[str, Any]:
    """The state in a file of format 1, which is trusted as the checkpoint around it is.

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
