"""``april doctor``: looks at this machine and says of each thing whether it is right, and if not, what to do."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable

from april.errors import UsageError
from april.hosts import NAMES
from april.launch.arguments import UsageParser
from april.launch.environment.detect import DEVICES
from april.launch.environment.errors import SetupError

from . import device, environment, machine, memory_saver, patches, ray_node, versions
from .check import Check, Status, fail, unknown, worst
from .facts import Facts, gather

GROUPS: tuple[tuple[str, Callable[[Facts], list[Check]]], ...] = (
    ("versions", versions.checks),
    ("patches", patches.checks),
    ("device", device.checks),
    ("memory saver", memory_saver.checks),
    ("machine", machine.checks),
    ("ray", ray_node.checks),
    ("environment", environment.checks),
)
COLOURS = {Status.OK: "32", Status.WARN: "33", Status.FAIL: "31"}
WIDTH = max(map(len, Status))

Group = tuple[str, list[Check]]


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = UsageParser(
        prog="april doctor",
        allow_abbrev=False,
        description="Check this machine: each line is OK, WARN or FAIL, the last two with a remedy. Starts nothing, "
        "changes nothing.",
        epilog="exit code: 0 all OK, 1 some WARN, 2 some FAIL",
    )
    made.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    made.add_argument(
        "--device", default="auto", choices=["auto", *DEVICES], help="check for this device (default: found)"
    )
    made.add_argument("--host", default="auto", choices=["auto", *NAMES], help="check for this host (default: found)")
    return made


def run(argv: list[str]) -> int:
    """Gather, check, print; returns 0, 1 or 2.

    Raises:
        UsageError: for a wrong flag.
    """
    given = parser().parse_args(argv)
    try:
        groups = examine(gather(os.environ, given.device, given.host))
    except SetupError as error:
        raise UsageError(str(error)) from error
    except (OSError, RuntimeError, ValueError) as error:
        # No working directory, no home, no place for temporary files, metadata that cannot be read: no run either.
        said = f"this machine cannot be read: {' '.join(str(error).split()) or type(error).__name__}"
        groups = [("machine", [fail("facts", said, "mend that first; a run needs it as well")])]
    checks = [check for _, found in groups for check in found]
    print(as_json(checks) if given.json else as_text(groups, colour=sys.stdout.isatty()))
    return worst(checks).exit_code


def examine(facts: Facts) -> list[Group]:
    """Every group with its checks; a check that breaks is a WARN with the reason, never the end of the command."""
    return [(title, _guarded(title, checks, facts)) for title, checks in GROUPS]


def _guarded(title: str, checks: Callable[[Facts], list[Check]], facts: Facts) -> list[Check]:
    try:
        return checks(facts)
    except Exception as error:
        return [
            unknown(title, f"its checks broke ({type(error).__name__}: {error})", "report this as a fault of april")
        ]


def as_json(checks: list[Check]) -> str:
    """``{"checks": [{"name", "status", "detail", "remedy"}], "status"}``."""
    rows = [
        {"name": check.name, "status": check.status.value, "detail": check.detail, "remedy": check.remedy}
        for check in checks
    ]
    return json.dumps({"checks": rows, "status": worst(checks).value}, indent=2)


def as_text(groups: list[Group], colour: bool = False) -> str:
    """One line a check, an indented one for each remedy, and a count at the end."""
    checks = [check for _, found in groups for check in found]
    column = max((len(check.name) for check in checks), default=0)
    lines: list[str] = []
    for title, found in groups:
        if found:
            lines += [title, *(line for check in found for line in _lines(check, column, colour)), ""]
    counts = {status: sum(check.status is status for check in checks) for status in Status}
    return "\n".join([*lines, ", ".join(f"{count} {status.value}" for status, count in counts.items())])


def _lines(check: Check, column: int, colour: bool) -> list[str]:
    word = f"{check.status.value:{WIDTH}}"
    if colour:
        word = f"\033[{COLOURS[check.status]}m{word}\033[0m"
    line = f"  {word}  {check.name:{column}}  {check.detail}"
    return [line] if check.remedy is None else [line, f"{'':{WIDTH + 4}}{'':{column}}  -> {check.remedy}"]
