"""One line of the doctor: a name, a status, what was found, and for a fault its remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """OK, WARN (a run starts, but something is worse than it could be, or is not known) or FAIL (a run fails)."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"

    @property
    def exit_code(self) -> int:
        """0, 1, 2: what the command returns when this is the worst status."""
        return list(Status).index(self)


@dataclass(frozen=True)
class Check:
    """A finding. Every WARN and FAIL has a remedy, no OK has one."""

    name: str
    status: Status
    detail: str
    remedy: str | None = None

    def __post_init__(self) -> None:
        assert self.name, "a check needs a name"
        assert self.detail, f"{self.name}: a check says what was found"
        if self.status is Status.OK:
            assert self.remedy is None, f"{self.name}: what is OK needs no remedy"
        else:
            assert self.remedy, f"{self.name}: a fault needs a remedy"


def ok(name: str, detail: str) -> Check:
    """A check that found nothing wrong."""
    return Check(name, Status.OK, detail)


def warn(name: str, detail: str, remedy: str) -> Check:
    """A check that found something that a run survives."""
    return Check(name, Status.WARN, detail, remedy)


def fail(name: str, detail: str, remedy: str) -> Check:
    """A check that found something that a run does not survive."""
    return Check(name, Status.FAIL, detail, remedy)


def unknown(name: str, why: str, remedy: str) -> Check:
    """A check whose fact could not be read."""
    return warn(name, f"unknown: {why}", remedy)


def worst(checks: Iterable[Check]) -> Status:
    """The status of the whole: the worst of all."""
    return max((check.status for check in checks), key=lambda status: status.exit_code, default=Status.OK)
