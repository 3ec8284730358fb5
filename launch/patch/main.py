"""The subcommands of ``april patch``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from april import configs
from april.errors import AprilError, UsageError
from april.launch.arguments import UsageParser
from april.launch.patch import matrix, places, tables
from april.patches import check, diff, edits
from april.patches.check import Report, Status, Verdict
from april.patches.contracts import CONTRACTS
from april.patches.core import Feature, Patch, Row
from april.patches.sources import DISTRIBUTIONS, Source
from april.patches.table import PATCHES, SGLANG_PATCHES

ALL_PATCHES: tuple[Patch, ...] = PATCHES + SGLANG_PATCHES
ROWS: tuple[Row, ...] = (*ALL_PATCHES, *CONTRACTS)
PLACE = places.PLACE


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    made = UsageParser(
        prog="april patch", description="What the overlay changes upstream, and whether it fits a version."
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="list|check|diff|apply|revert")

    listing = commands.add_parser("list", help="every patch, and every thing upstream that we rely on")
    listing.add_argument("--contracts", action="store_true", help="what we call instead of what we change")
    listing.add_argument("--json", action="store_true")
    listing.add_argument("--markdown", action="store_true", help="as in docs/patches.md")

    checking = commands.add_parser("check", help="whether it all fits: what is installed, or what is given")
    for flag, package in places.FLAGS.items():
        checking.add_argument(f"--{flag}", dest=package, metavar="PLACE", help=f"{package}: {PLACE}")
    checking.add_argument(
        "--matrix", action="store_true", help="every supported version, compared with what is recorded"
    )
    checking.add_argument("--json", action="store_true")

    comparing = commands.add_parser("diff", help="what changed in a target between two versions")
    comparing.add_argument("name", help="a name from `april patch list`, contracts too")
    comparing.add_argument("--from", dest="old", metavar="PLACE", help=f"{PLACE} (default: the pin)")
    comparing.add_argument("--to", dest="new", metavar="PLACE", help=f"{PLACE} (default: what is installed)")
    comparing.add_argument("--json", action="store_true")

    applying = commands.add_parser("apply", help="write the patches into a source tree as small marked edits")
    applying.add_argument("--to", dest="tree", metavar="TREE", required=True)
    applying.add_argument("--feature", action="append", choices=[feature.value for feature in Feature], default=[])
    reverting = commands.add_parser("revert", help="take them out again, byte for byte")
    reverting.add_argument("--to", dest="tree", metavar="TREE", required=True)
    return made


def run(argv: list[str]) -> int:
    """Run a subcommand; returns 0, or 1 where something does not fit.

    Raises:
        UsageError: for a bad argument or place.
    """
    args = parser().parse_args(argv)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "check": _check,
        "diff": _diff,
        "apply": _apply,
        "revert": _revert,
    }
    return commands[args.command](args)


def _list(args: argparse.Namespace) -> int:
    if args.markdown:
        print(tables.markdown(ALL_PATCHES, CONTRACTS), end="")
    elif args.json:
        print(json.dumps([tables.row_dict(row) for row in (CONTRACTS if args.contracts else ALL_PATCHES)], indent=1))
    else:
        print(tables.contracts(CONTRACTS) if args.contracts else tables.patches(ALL_PATCHES))
    return 0


def _check(args: argparse.Namespace) -> int:
    wanted = {
        package: getattr(args, package) for package in places.FLAGS.values() if getattr(args, package) is not None
    }
    if args.matrix:
        if wanted:
            raise UsageError("--matrix checks the versions of configs/support.json: give no place with it")
        return matrix.run(ROWS, args.json)
    if wanted:
        found = [places.given(package, place) for package, place in wanted.items()]
    else:
        packages = dict.fromkeys(row.package for row in ROWS if row.package in DISTRIBUTIONS)
        found = [source for package in packages if (source := places.present(package)) is not None]
    reports = [check.report(source, ROWS) for source in found]
    if not reports:
        raise UsageError("none of the packages that we patch is installed: name one, e.g. --sglang WHEEL")
    if args.json:
        bodies = [report.to_dict() for report in reports]
        print(json.dumps(bodies[0] if len(wanted) == 1 else {"reports": bodies}, indent=1))
    else:
        print("\n".join(map(tables.report, reports)))
    return int(any(_refused(report) for report in reports))


def _refused(report: Report) -> bool:
    return any(report.verdict(feature) is Verdict.REFUSED for feature in report.features)


def _diff(args: argparse.Namespace) -> int:
    row = next((row for row in ROWS if row.name == args.name), None)
    if row is None:
        raise UsageError(f"no patch or contract {args.name!r}: `april patch list` and `list --contracts` name them")
    if row.package not in DISTRIBUTIONS:
        raise UsageError(f"{row.name}: {row.package} is Python's own, its versions are not compared")
    old, new = _sides(args, row)
    try:
        differences = diff.compare(row, old, new)
    except SyntaxError as error:
        raise UsageError(f"{row.name}: a target cannot be read as Python ({error})") from error
    if args.json:
        targets = [{"target": d.target, "status": d.status, "diff": d.text} for d in differences]
        print(json.dumps({"name": row.name, "from": old.version, "to": new.version, "targets": targets}, indent=1))
        return 0
    print(f"{row.name}: {row.package} {old.version} ({old.label}) -> {new.version} ({new.label})")
    for difference in differences:
        print(f"{difference.status:10} {difference.target}")
        if difference.text:
            print(difference.text)
    return 0


def _sides(args: argparse.Namespace, row: Row) -> tuple[Source, Source]:
    """The two versions: by default from the pin to what is here."""
    new = places.given(row.package, args.new) if args.new else places.present(row.package)
    if new is None:
        raise UsageError(f"{row.package} is not installed here: give --to")
    if args.old:
        return places.given(row.package, args.old), new
    pin = configs.pins().get(DISTRIBUTIONS[row.package], {}).get("version")
    if pin is None or row.package == "slime":
        raise UsageError(f"give --from, a place with the {row.package} to compare with{f' ({pin})' if pin else ''}")
    return places.given(row.package, pin), new


def _apply(args: argparse.Namespace) -> int:
    tree = Path(args.tree).expanduser()
    if tree.name in edits.EDITABLE and (tree / "__init__.py").is_file():
        tree = tree.parent
    wanted = {Feature(name) for name in args.feature} or set(Feature)
    plan = [edit for package in edits.packages_in(tree) for edit in _plan(tree, package, wanted)]
    if not plan:
        names = ", ".join(sorted(feature.value for feature in wanted))
        raise UsageError(f"nothing of {names} is to be changed in {tree}")
    edited = edits.apply(tree, plan)
    for edit in plan:
        print(f"{'edited' if edit.file in edited else 'was edited'}  {edit.file}: {', '.join(edit.patches)}")
    print("`april` must be importable where this tree runs; `april patch revert` takes the edits out again")
    return 0


def _plan(tree: Path, package: str, wanted: set[Feature]) -> list[edits.Edit]:
    """The edits of one package in the tree. Raises AprilError for a patch that is wanted and does not fit."""
    source = places.given(package, str(tree))
    rows = [
        patch
        for patch in ALL_PATCHES
        if patch.feature in wanted and package in (patch.package, *_hosts(patch, package))
    ]
    asked = {patch.feature for patch in rows}
    holding = []
    for patch in rows:
        finding = check.examine(patch, source) if patch.package == package else None
        if finding is None or finding.status is Status.OK:
            holding.append(patch)
        elif patch.optional:
            print(f"april: skipped: {finding.detail}", file=sys.stderr)
        else:
            report = check.report(source, ROWS)
            fit = [
                each.value for each in report.features if report.verdict(each) is not Verdict.REFUSED and each in asked
            ]
            hint = f"; --feature {' --feature '.join(fit)} leaves it out" if fit else ""
            raise AprilError(f"{patch.feature.value} does not fit {tree}: {finding.detail}{hint}")
    return edits.plan(tree, package, holding)


def _hosts(patch: Patch, package: str) -> frozenset[str]:
    """A patch of another package's may wait for a module of the host."""
    return patch.hosts if patch.module.startswith(("{host}", package)) else frozenset()


def _revert(args: argparse.Namespace) -> int:
    words = {
        "restored": "restored",
        "edited": "our lines are out, but it was edited since",
        "replaced": "nothing to take out, it was replaced since",
    }
    done = edits.revert(Path(args.tree).expanduser())
    for one in done:
        print(f"{words[one.how]}  {one.file}")
    return int(any(one.how != "restored" for one in done))
