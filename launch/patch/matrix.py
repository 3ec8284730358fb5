"""``april patch check --matrix``: every version that we support, compared with what is recorded (configs/support.json).

Wheels come from the registry. slime is on none: its versions are read from the history of the clone that ``SLIME_DIR``
names; without a clone they are listed as not checked.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from april import configs
from april.errors import UsageError
from april.launch.environment.paths import miles_root
from april.launch.patch import places, tables
from april.patches import check
from april.patches.check import Report, Verdict
from april.patches.core import Feature, Row

UNREAD = "not checked"


@dataclass(frozen=True, slots=True)
class Entry:
    """One supported version of one package: what is expected of each feature, and how that was seen."""

    package: str
    version: str
    features: dict[str, str]
    note: str


def entries() -> list[Entry]:
    """All supported versions; ``latest`` has no expectation."""
    return [
        Entry(package, row["version"], row.get("features", {}), row["note"])
        for package, rows in configs.support().items()
        for row in rows
    ]


def run(rows: Iterable[Row], as_json: bool) -> int:
    """Check all and print; 1 where a version no longer is what was recorded."""
    rows = list(rows)
    bodies = []
    for entry in entries():
        print(f"april: {entry.package} {entry.version} ...", file=sys.stderr, flush=True)
        bodies.append(_examine(entry, rows))
    differs = [body for body in bodies if body["as_recorded"] is False]
    # Only slime, which is on no registry, may be left out.
    unread = [body for body in bodies if body["verdict"] == UNREAD and body["package"] != "slime"]
    status = "differs" if differs else "incomplete" if unread else "ok"
    if as_json:
        print(json.dumps({"rows": bodies, "status": status}, indent=1))
    else:
        cells = [(body["package"], body["version"], body["verdict"], body["reason"]) for body in bodies]
        print(tables.columns(("package", "version", "verdict", "reason"), cells))
    for body in differs:
        print(f"april: {body['package']} {body['version']} is not as recorded: {body['features']}", file=sys.stderr)
    for body in unread:
        print(f"april: {body['package']} {body['version']} was not checked: {body['reason']}", file=sys.stderr)
    return int(status != "ok")


def _examine(entry: Entry, rows: list[Row]) -> dict[str, Any]:
    body: dict[str, Any] = {"package": entry.package, "version": entry.version, "note": entry.note}
    try:
        source = places.given(entry.package, _place(entry))
    except UsageError as error:
        return {**body, "verdict": UNREAD, "reason": str(error), "features": {}, "as_recorded": None}
    report = check.report(source, rows)
    features = {feature.value: report.verdict(feature).value for feature in report.features}
    known = entry.features
    name = entry.version if entry.version != "latest" else f"{source.version} (newest)"
    return {
        **body,
        "version": name,
        "verdict": verdict(report),
        "reason": _reason(report) or entry.note,
        "features": features,
        "as_recorded": features == known if known else None,
    }


def _place(entry: Entry) -> str:
    if entry.package != "slime":
        root = miles_root()
        unpacked = root is not None and (root / f"miles_rl-{entry.version}.dist-info").is_dir()
        return str(root) if entry.package == "miles" and unpacked else entry.version
    clone = os.environ.get("SLIME_DIR")
    if not clone:
        raise UsageError("SLIME_DIR does not name a clone of slime")
    return f"{clone}@{entry.version}"


def verdict(report: Report) -> str:
    """In words: works, works without something, or refused."""
    verdicts = {feature: report.verdict(feature) for feature in report.features}
    refused = [feature.value for feature, found in verdicts.items() if found is Verdict.REFUSED]
    if verdicts.get(Feature.HOST) is Verdict.REFUSED or len(refused) == len(verdicts):
        return "refused"
    partly = [feature.value for feature, found in verdicts.items() if found is Verdict.DEGRADED]
    words = "works" + (f" without {', '.join(refused)}" if refused else "")
    return words + (f" ({', '.join(partly)} in part)" if partly else "")


def _reason(report: Report) -> str:
    faults = [finding.detail for feature in report.features for finding in report.faults(feature)]
    first, *others = [*dict.fromkeys(faults)] or [""]
    short, _, rest = first.partition("; ")
    return short + (" (and more: check it alone)" if others or rest else "")
