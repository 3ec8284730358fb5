"""Records the fingerprints of a version that somebody has verified.

``python -m april.patches.record PACKAGE PLACE LABEL [ROW ...]``

PLACE is a source tree, a wheel or an sdist. Everything in the tables that must match exactly is recorded under LABEL.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from april.patches import sources
from april.patches.check import locate
from april.patches.contracts import CONTRACTS
from april.patches.table import PATCHES, SGLANG_PATCHES

FILE = Path(__file__).resolve().parent / "fingerprints.json"


def record(package: str, place: str, label: str, names: list[str]) -> None:
    """Write what is found at ``place`` into the file, for the rows ``names`` or for all.

    Raises:
        UsageError: when the package is not there.
    """
    source = sources.at(package, place)
    rows = [row for row in (*PATCHES, *SGLANG_PATCHES, *CONTRACTS) if not names or row.name in names]
    wanted = [target for row in rows if row.exact and row.package == package for target in row.targets]
    found = {
        located.place: located.fingerprint()
        for target in wanted
        if target.package == package and (located := locate(target, source))
    }
    data = json.loads(FILE.read_text())
    data.setdefault(package, {}).setdefault(label, {}).update(found)
    FILE.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    print(f"{len(found)} of {len(wanted)} targets of {package} {label} recorded")


if __name__ == "__main__":
    package, place, label, *names = sys.argv[1:]
    record(package, place, label, names)
