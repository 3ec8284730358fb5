"""``april presets``: what ``april launch`` can be given."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from april.launch.arguments import UsageParser
from april.launch.presets.catalog import KINDS, Catalog
from april.launch.presets.files import Preset

TITLES = {"runs": "runs with a file of their own", "models": "models", "data": "data"}


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = UsageParser(prog="april presets", allow_abbrev=False, description=__doc__)
    commands = made.add_subparsers(dest="command", required=True, metavar="list|show")
    listing = commands.add_parser("list", help="all presets by kind", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    show = commands.add_parser("show", help="one preset, with all that it extends", allow_abbrev=False)
    show.add_argument("name", metavar="NAME", help="a run, model, data set, algorithm or hardware")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def run(argv: list[str]) -> int:
    """List or show; returns the exit code.

    Raises:
        UsageError: for an unknown name or a faulty file.
    """
    flags = parser().parse_args(argv)
    catalog = Catalog.of_environment(os.environ)
    if flags.command == "list":
        return _list(catalog, flags.json)
    body = document(_find(catalog, flags.name))
    if flags.json:
        print(json.dumps(body))
    else:
        import yaml

        print(yaml.safe_dump(body, sort_keys=False, width=120), end="")
    return 0


def document(preset: Preset) -> dict[str, Any]:
    """A preset as it is shown."""
    return {
        "kind": preset.kind,
        "name": preset.name,
        "summary": preset.summary,
        **preset.own,
        "flags": dict(preset.flags),
        "environment": dict(preset.environment),
        "with": {case: dict(flags) for case, flags in preset.cases.items()},
        "files": list(preset.files),
    }


def _list(catalog: Catalog, as_json: bool) -> int:
    found = {kind: {name: catalog.get(kind, name).summary for name in catalog.names(kind)} for kind in KINDS}
    if as_json:
        print(json.dumps(found))
        return 0
    width = max(len(name) for names in found.values() for name in names)
    for kind, names in found.items():
        print(f"{TITLES.get(kind, kind)}:")
        for name, summary in names.items():
            print(f"  {name:{width}}  {summary}")
    print("A run is any MODEL-DATA of the above: april launch MODEL-DATA --dry-run shows what it would start.")
    return 0


def _find(catalog: Catalog, name: str) -> Preset:
    """The first kind that knows the name; runs last, whose error lists what there is."""
    for kind in KINDS[1:]:
        if name in catalog.names(kind):
            return catalog.get(kind, name)
    return catalog.run(name)
