"""``april verify-sd``: whether what a speculating engine emits is what a plain one does."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from april.launch.arguments import UsageParser

QUICK_DRAWS = 1_000_000


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = UsageParser(
        prog="april verify-sd",
        allow_abbrev=False,
        description="Shows that speculative decoding changes nothing but the speed (docs/verify.md). Exit code 0 where "
        "all is as it must be, else 1.",
    )
    made.add_argument("--quick", action="store_true", help="fewer draws, prompts and requests: minutes, not hours")
    made.add_argument("--offline-only", action="store_true", help="the sampler alone: no server is started")
    made.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return made


def run(argv: list[str]) -> int:
    """Returns the exit code: 1 where something is not as it must be. Raises UsageError for a wrong flag."""
    flags = parser().parse_args(argv)
    found = offline(flags.quick)
    print(json.dumps(found, indent=1) if flags.json else text(found))
    return 0 if found["ok"] else 1


def offline(quick: bool) -> dict[str, Any]:
    """The sampler alone: ``sampler_p_values``, ``seeded_faults_caught``, ``ok``."""
    from april.launch.verify import cases, faults, offline
    from april.launch.verify.statistics import rejected
    from specrollout import sampling

    p_values: dict[str, float] = {}
    for case in cases.cases(None if quick else range(1, 5)):
        p_values |= offline.p_values(case, draws=QUICK_DRAWS if quick else offline.DRAWS)
        print(f"april: {case.title}: p = {min(list(p_values.values())[-2:]):.3g}", file=sys.stderr)
    caught = faults.caught()
    ok = not rejected(p_values) and all(caught.values()) and not faults.accepts_impossible(sampling.verify)
    return {"sampler_p_values": p_values, "seeded_faults_caught": caught, "ok": ok}


def text(found: dict[str, Any]) -> str:
    """For people."""
    values, caught = found["sampler_p_values"], found["seeded_faults_caught"]
    name, least = min(values.items(), key=lambda item: item[1])
    missed = [fault for fault, seen in caught.items() if not seen]
    return "\n".join(
        [
            f"sampler: {len(values)} chi-square tests, least p-value {least:.3g} ({name})",
            f"seeded faults: {len(caught) - len(missed)} of {len(caught)} caught"
            + "".join(f"; MISSED: {m}" for m in missed),
            "ok" if found["ok"] else "NOT as it must be",
        ]
    )
