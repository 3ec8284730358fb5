"""Whether the overlay fits the versions that a run would use: read from their files, before anything starts."""

from __future__ import annotations

from april.errors import UsageError
from april.hosts import Host
from april.patches import sources
from april.patches.check import Report, Status, examine, remedy
from april.patches.contracts import CONTRACTS
from april.patches.core import Feature, Row
from april.patches.sources import Source
from april.patches.table import wanted


def needed(device: str, april: bool, correction: bool = False, speculation: bool = False) -> frozenset[Feature]:
    """The features of a run: with partial rollouts, with weights in the loss, with speculation in the engines."""
    wanted = {Feature.HOST: True, Feature.APRIL: april, Feature.CORRECTION: correction, Feature.CPU: device == "cpu"}
    wanted[Feature.SPECULATION] = speculation
    return frozenset(feature for feature, asked in wanted.items() if asked)


def check(host: Host, device: str, features: frozenset[Feature]) -> list[str]:
    """Lines for what works less well on these versions.

    Raises:
        UsageError: for a patch or contract that the run needs and that does not hold: what changed, and what to do.
    """
    lines = []
    for report in reports(host, device, features):
        for finding in report.findings:
            if finding.status is Status.OK:
                continue
            if not finding.row.optional:
                raise UsageError(
                    f"{finding.row.feature.value} does not fit {report.source.label}: {finding.detail}. "
                    f"{remedy(finding.row)}"
                )
            lines.append(f"{finding.row.feature.value} is less complete: {finding.detail}")
    return lines


def reports(host: Host, device: str, features: frozenset[Feature]) -> list[Report]:
    """Every row that the run needs, by package. What is not installed here is checked where it runs."""
    others = "miles" if host.name == "slime" else "slime"
    contracts = [row for row in CONTRACTS if row.feature in features and row.package != others]
    rows: list[Row] = [
        *wanted(
            host.name,
            device,
            Feature.APRIL in features,
            Feature.SPECULATION in features,
            Feature.INTERRUPT in features,
        ),
        *contracts,
    ]
    found = []
    for package in dict.fromkeys(row.package for row in rows):
        if (source := _source(host, package)) is not None:
            found.append(Report(source, tuple(examine(row, source) for row in rows if row.package == package)))
    return found


def _source(host: Host, package: str) -> Source | None:
    if package not in sources.DISTRIBUTIONS:
        return None
    for path in host.paths():
        if (path / package).is_dir():
            return sources.at(package, str(path))
    return sources.installed(package)
