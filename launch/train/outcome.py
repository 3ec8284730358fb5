"""How a run failed, in one line: the first cause counts, whoever sees it first."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path

from april.errors import AprilError

FILE = "error.json"


def record(run_dir: Path, message: str, exit_code: int) -> bool:
    """Write why the run failed unless that is known already; tells whether it was written."""
    try:
        handle = os.open(run_dir / FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        json.dump({"message": message, "exit_code": exit_code}, file)
    return True


def report(run_dir: Path, error: BaseException, started: bool = False) -> int:
    """Record ``error`` with its traceback in the log; returns the exit code.

    Exit code 2 means that nothing had started: whatever fails in a run that has ``started`` is a failure.
    """
    cause = root(error)
    code = cause.exit_code if isinstance(cause, AprilError) and not started else 1
    message = one_line(cause)
    if record(run_dir, message, code) and not isinstance(error, AprilError):
        traceback.print_exception(error)
    return code


def root(error: BaseException) -> BaseException:
    """What went wrong in the first place: Ray wraps the cause of a remote failure."""
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause  # type: ignore[attr-defined]
    return error


def one_line(error: BaseException) -> str:
    """The message of an error of ours, else the type and the last line: where a remote traceback has its point."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, AprilError):
        return " ".join(lines)
    said = f": {lines[-1]}" if lines else " without a message; see the log"
    return type(error).__name__ + said
