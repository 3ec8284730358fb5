"""``april buffer show|verify|export``: what a buffer holds, whether it is sound, and its contents as a table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from april.buffer import reader
from april.launch.arguments import UsageParser

from . import export, summary


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = UsageParser(
        prog="april buffer",
        allow_abbrev=False,
        description="Look at a buffer of partials: a run's (SAVE/rollout/april_buffer, as it was when its last round "
        "ended; the run may go on), or a checkpoint's (SAVE/rollout/april_buffer_N). Nothing is changed.",
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="show|verify|export")
    show = commands.add_parser("show", help="what it holds", allow_abbrev=False)
    verify = commands.add_parser(
        "verify", help="read all of it: exit code 0 where it is sound, else 1", allow_abbrev=False
    )
    for sub in (show, verify):
        sub.add_argument("path", type=Path, metavar="PATH", help="the buffer's folder")
        sub.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    out = commands.add_parser("export", help="one row for each response, as parquet", allow_abbrev=False)
    out.add_argument("path", type=Path, metavar="PATH", help="the buffer's folder")
    out.add_argument("out", type=Path, metavar="OUT.parquet", help="a file that does not exist yet")
    return made


def run(argv: list[str]) -> int:
    """Returns the exit code: 1 where ``verify`` found faults.

    Raises:
        UsageError: for a wrong flag or path.
        AprilError: for a buffer that cannot be read.
    """
    given = parser().parse_args(argv)
    if given.command == "verify":
        return _verify(given.path, given.json)
    with reader.opened(given.path) as buffer:
        if given.command == "export":
            count = export.write(buffer, given.out)
            print(f"{count} responses written to {given.out}")
        else:
            found = summary.of(buffer)
            print(json.dumps(found, indent=1) if given.json else summary.text(found))
    return 0


def _verify(path: Path, as_json: bool) -> int:
    with reader.opened(path) as buffer:
        faults = buffer.faults()
        groups = sum(1 for _ in buffer.index.entries())
    if as_json:
        print(json.dumps({"sound": not faults, "groups": groups, "faults": faults}, indent=1))
    else:
        print("\n".join(faults) if faults else f"{path} is sound: {groups} groups")
    return 1 if faults else 0
