"""The first cause of a failure is what the user is told."""

from __future__ import annotations

import json
from pathlib import Path

from april.errors import AprilError, UsageError
from april.launch.train import outcome


class Remote(Exception):
    """As Ray's: the text ends with the cause, which is an attribute as well."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"remote traceback\n  File x\n{cause}")
        self.cause = cause


def told(run_dir: Path) -> tuple[str, int]:
    body = json.loads((run_dir / outcome.FILE).read_text())
    return body["message"], body["exit_code"]


def test_the_first_record_stays(tmp_path: Path) -> None:
    assert outcome.record(tmp_path, "the cause", 1)
    assert not outcome.record(tmp_path, "what followed", 1)
    assert told(tmp_path) == ("the cause", 1)


def test_a_remote_error_is_unwrapped(tmp_path: Path) -> None:
    assert outcome.report(tmp_path, Remote(Remote(ValueError("broken reward"))), started=True) == 1
    assert told(tmp_path) == ("ValueError: broken reward", 1)


def test_an_error_of_ours_in_a_worker_is_a_failure_not_usage(tmp_path: Path) -> None:
    assert outcome.report(tmp_path, Remote(UsageError("no tensor x;\nuse another")), started=True) == 1
    assert told(tmp_path) == ("no tensor x; use another", 1)


def test_usage_before_anything_started(tmp_path: Path) -> None:
    assert outcome.report(tmp_path, UsageError("unknown flag")) == 2
    assert outcome.one_line(AprilError("plain")) == "plain"
    assert outcome.one_line(AssertionError()) == "AssertionError without a message; see the log"
