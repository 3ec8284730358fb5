"""Whether patches and contracts hold on a version of a package: read from its source, nothing is imported."""

from __future__ import annotations

import enum
import functools
import importlib.resources
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from april.patches import fingerprint
from april.patches.core import Feature, Patch, Row, Target
from april.patches.sources import UNKNOWN, Source


class Status(str, enum.Enum):
    """How a row stands on a source."""

    OK = "ok"
    CHANGED = "changed"
    MISSING = "missing"
    OUT_OF_RANGE = "out-of-range"


class Verdict(str, enum.Enum):
    """What becomes of a feature."""

    WORKS = "works"
    DEGRADED = "degraded"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row on one source. ``detail`` is one line for what is not OK: which target, expected and found."""

    row: Row
    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All rows that concern one source."""

    source: Source
    findings: tuple[Finding, ...]

    def verdict(self, feature: Feature) -> Verdict:
        """Refused where a row that it needs does not hold, degraded where an optional one does not."""
        faults = self.faults(feature)
        if any(not finding.row.optional for finding in faults):
            return Verdict.REFUSED
        return Verdict.DEGRADED if faults else Verdict.WORKS

    def faults(self, feature: Feature) -> list[Finding]:
        """What stands against a feature. All features need the host itself."""
        needed = {feature, Feature.HOST}
        return [
            finding for finding in self.findings if finding.status is not Status.OK and finding.row.feature in needed
        ]

    @property
    def features(self) -> list[Feature]:
        """The features that have a row here, in the order of the enumeration."""
        return [feature for feature in Feature if any(finding.row.feature is feature for finding in self.findings)]

    def to_dict(self) -> dict[str, Any]:
        """As ``april patch check --json`` prints it."""

        def entry(finding: Finding) -> dict[str, str]:
            body = {"name": finding.row.name, "status": finding.status.value}
            return {**body, "detail": finding.detail} if finding.detail else body

        return {
            "target": self.source.label,
            "package": self.source.package,
            "version": self.source.version,
            "patches": [entry(finding) for finding in self.findings if isinstance(finding.row, Patch)],
            "contracts": [entry(finding) for finding in self.findings if not isinstance(finding.row, Patch)],
            "features": {feature.value: self.verdict(feature).value for feature in self.features},
            "reasons": {
                feature.value: [finding.detail for finding in self.faults(feature)]
                for feature in self.features
                if self.faults(feature)
            },
        }


@functools.cache
def verified() -> dict[str, dict[str, dict[str, str]]]:
    """``fingerprints.json``: package -> version that was verified -> place -> fingerprint."""
    text = importlib.resources.files("april.patches").joinpath("fingerprints.json").read_text()
    data: dict[str, dict[str, dict[str, str]]] = json.loads(text)
    return data


def report(source: Source, rows: Iterable[Row]) -> Report:
    """Examine every row that concerns the source's package."""
    return Report(source, tuple(examine(row, source) for row in rows if row.package == source.package))


def examine(row: Row, source: Source) -> Finding:
    """Compare one row with a source."""
    faults = [fault for target in row.targets if (fault := _target_fault(row, target, source))]
    if faults:
        worst = Status.MISSING if any(status is Status.MISSING for status, _ in faults) else Status.CHANGED
        return Finding(row, worst, f"{row.name}: {'; '.join(text for _, text in faults)}")
    if not in_range(source.version, row.versions):
        detail = f"{row.name}: {source.package} {source.version} is outside {row.versions}, where it was shown to work"
        return Finding(row, Status.OUT_OF_RANGE, detail)
    return Finding(row, Status.OK)


def in_range(version: str, specifier: str) -> bool:
    """Whether a version satisfies a specifier; one that cannot be read is judged by the code alone."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


@dataclass(frozen=True, slots=True)
class Found:
    """A target in a source: its place, and its definitions by module; more than one where a name is imported."""

    place: str
    parts: tuple[tuple[bytes, list[Any]], ...]

    def fingerprint(self) -> str:
        """Of all definitions together."""
        return fingerprint.of([node for _, nodes in self.parts for node in nodes])

    def text(self) -> str:
        """The source of all definitions."""
        return "".join(fingerprint.text(content, nodes) for content, nodes in self.parts)


def locate(target: Target, source: Source) -> Found | None:
    """The first place of a target that exists. Raises SyntaxError where it is no Python."""
    for place in target.places:
        module, _, attribute = place.partition(":")
        if parts := _definitions(source, module, attribute):
            return Found(place, tuple(parts))
    return None


def _definitions(source: Source, module: str, attribute: str) -> list[tuple[bytes, list[Any]]]:
    """Where ``attribute`` is bound; a name imported from the same package is followed to where it is made."""
    content = source.module(module)
    nodes = fingerprint.find(content, attribute) if content is not None else []
    if content is None or not nodes:
        return []
    parts = [(content, nodes)]
    for home, name in fingerprint.imported(nodes, module):
        if home.partition(".")[0] == source.package and home != module:
            parts += _definitions(source, home, name)
    return parts


def _target_fault(row: Row, target: Target, source: Source) -> tuple[Status, str] | None:
    version = "" if source.version == UNKNOWN else f" {source.version}"
    try:
        found = locate(target, source)
    except (SyntaxError, ValueError) as error:
        return Status.CHANGED, f"{target} in {source.label} cannot be read as Python ({error})"
    if found is None:
        return Status.MISSING, f"{source.package}{version} has no {target}"
    place = found.place
    if not row.exact:
        return None
    known = {label: prints[place] for label, prints in verified().get(source.package, {}).items() if place in prints}
    if (now := found.fingerprint()) in known.values():
        return None
    expected = ", ".join(f"{fp} ({label})" for label, fp in known.items()) or "none recorded"
    return Status.CHANGED, f"{place} of {source.package}{version} is {now}, verified are {expected}"
