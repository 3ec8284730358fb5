"""What ``april patch`` prints for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from april.patches.check import Report, Status, Verdict
from april.patches.core import Contract, Patch, Row

MARKS = {Verdict.WORKS: "works", Verdict.DEGRADED: "works in part", Verdict.REFUSED: "refused"}


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def report(found: Report) -> str:
    """One source: its features, and what stands against them."""
    source = found.source
    verdicts = ", ".join(f"{feature.value} {MARKS[found.verdict(feature)]}" for feature in found.features)
    lines = [f"{source.package} {source.version} ({source.label}): {verdicts or 'nothing of ours concerns it'}"]
    for finding in found.findings:
        if finding.status is not Status.OK:
            optional = ", optional" if finding.row.optional else ""
            lines.append(f"  {finding.status.value:12}  {finding.row.feature.value}{optional}: {finding.detail}")
    return "\n".join(lines)


def patches(rows: Iterable[Patch]) -> str:
    """The table of patches."""
    return columns(
        ("name", "feature", "versions", "processes", "target"),
        [
            (
                row.name,
                row.feature.value + (" (optional)" if row.optional else ""),
                f"{row.package} {row.versions}",
                ", ".join(sorted(process.value for process in row.processes)),
                str(row.targets[0]) + (f" and {len(row.targets) - 1} more" if len(row.targets) > 1 else ""),
            )
            for row in rows
        ],
    )


def contracts(rows: Iterable[Contract]) -> str:
    """The table of contracts."""
    return columns(
        ("name", "feature", "versions", "targets", "why"),
        [
            (row.name, row.feature.value, f"{row.package} {row.versions}", str(len(row.targets)), row.reason)
            for row in rows
        ],
    )


def row_dict(row: Row) -> dict[str, object]:
    """A row as ``april patch list --json`` prints it."""
    body: dict[str, object] = {
        "name": row.name,
        "kind": "patch" if isinstance(row, Patch) else "contract",
        "feature": row.feature.value,
        "optional": row.optional,
        "package": row.package,
        "versions": row.versions,
        "targets": [str(target) for target in row.targets],
        "exact": row.exact,
        "reason": row.reason,
        "link": row.link,
    }
    if isinstance(row, Patch):
        body |= {
            "processes": sorted(process.value for process in row.processes),
            "hosts": sorted(row.hosts),
            "until": row.until,
        }
    return body


def markdown(patch_rows: Iterable[Patch], contract_rows: Iterable[Contract]) -> str:
    """Both tables for docs/patches.md."""
    lines = ["### What is changed", ""]
    for row in patch_rows:
        kind = "optional" if row.optional else "required"
        lines += [
            f"- **{row.name}** ({row.feature.value}, {kind}): {row.reason}. Target: "
            f"{', '.join(f'`{target}`' for target in row.targets)}, {row.package} `{row.versions}`; live in "
            f"{', '.join(sorted(process.value for process in row.processes))}. Until {row.until}. "
            f"[upstream]({row.link})"
        ]
    lines += ["", "### What is called, and must stay as it is", ""]
    for contract in contract_rows:
        lines += [
            f"- **{contract.name}** ({contract.feature.value}): {contract.reason}. "
            f"{', '.join(f'`{target}`' for target in contract.targets)}, {contract.package} `{contract.versions}`. "
            f"[upstream]({contract.link})"
        ]
    return "\n".join(lines) + "\n"
