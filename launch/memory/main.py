"""``april memory selftest``: shows on this machine that memory is freed, comes back, and survives faults."""

from __future__ import annotations

import argparse
import json
from typing import Any

from april.launch.arguments import UsageParser

BACKENDS = ("host", "hip-emulated", "cuda-emulated")


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = UsageParser(
        prog="april memory", allow_abbrev=False, description="Pause and resume of memory by tag (docs/memory.md)."
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="selftest")
    selftest = commands.add_parser(
        "selftest",
        allow_abbrev=False,
        help="check it here, without a GPU: exit code 0 where all is as it must be, else 1",
        description="Checks the memory saver on host memory, and its HIP and CUDA drivers on emulated runtimes: bytes "
        "freed and restored, contents, addresses, drift over 50 cycles, time, and each fault with what happened. Needs "
        "g++ the first time. Exit code 0 where all is as it must be, else 1.",
    )
    selftest.add_argument("--backend", choices=BACKENDS, action="append", help="only this one; may be repeated")
    selftest.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return made


def run(argv: list[str]) -> int:
    """Returns the exit code: 1 where something is not as it must be.

    Raises:
        UsageError: for a wrong flag.
        AprilError: where the core cannot be compiled.
    """
    given = parser().parse_args(argv)
    from april.memory import selftest

    found = selftest.run(list(given.backend or BACKENDS))
    print(json.dumps(found, indent=1) if given.json else text(found))
    return 0 if found["ok"] else 1


def text(found: dict[str, Any]) -> str:
    """For people."""
    lines = []
    for name, row in found["backends"].items():
        same = f"contents {'equal' if row['content_equal'] else 'DIFFER'}, addresses "
        lines += [
            f"{name}: {'ok' if row['ok'] else 'NOT as it must be'}",
            f"  {row['freed_fraction']:.1%} of a region freed, {row['restored_fraction']:.1%} restored, "
            f"{same}{'equal' if row['address_equal'] else 'DIFFER'}, drift over 50 cycles {row['drift_50_cycles']:.2%}",
            "  ms per GiB: " + "; ".join(f"{what} {ms:.0f}" for what, ms in row["latency_ms_per_gib"].items()),
            *(f"  {fault}: {told}" for fault, told in row["faults"].items()),
        ]
    return "\n".join(lines)
