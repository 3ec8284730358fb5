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

TOLD_BY_CODE = ("miles", "slime")
"""Packages of which so much code is compared that a tree without a version is known by it."""


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
    if row.exact and not faults and not _one_version(row, source):
        faults = [(Status.CHANGED, f"its targets in {source.label} are those of different versions")]
    if faults:
        worst = Status.MISSING if any(status is Status.MISSING for status, _ in faults) else Status.CHANGED
        return Finding(row, worst, f"{row.name}: {'; '.join(text for _, text in faults)}")
    inside = in_range(source.version, row.versions)
    if inside is False:
        detail = f"{row.name}: {source.package} {source.version} is outside {row.versions}, where it was shown to work"
        return Finding(row, Status.OUT_OF_RANGE, detail)
    if inside is None and source.package not in TOLD_BY_CODE:
        detail = (
            f"{row.name}: the version of {source.label} cannot be told ({source.version}); verified: {row.versions}"
        )
        return Finding(row, Status.OUT_OF_RANGE, detail)
    return Finding(row, Status.OK)


def in_range(version: str, specifiers: str) -> bool | None:
    """Whether a version satisfies one of the specifiers (separated by ``|``); None where it cannot be read."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        found = Version(version)
    except InvalidVersion:
        return None
    return any(SpecifierSet(text).contains(found, prereleases=True) for text in specifiers.split("|"))


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


def _definitions(
    source: Source, module: str, attribute: str, seen: tuple[tuple[str, str], ...] = ()
) -> list[tuple[bytes, list[Any]]]:
    """Where ``attribute`` is bound; a name imported from the same package is followed to where it is made."""
    content = source.module(module)
    nodes = fingerprint.find(content, attribute) if content is not None else []
    if content is None or not nodes:
        return []
    parts = [(content, nodes)]
    for home, name in fingerprint.imported(nodes, module, source.is_package(module)):
        if home.partition(".")[0] == source.package and (home, name) not in seen:
            parts += _definitions(source, home, name, (*seen, (home, name)))
    return parts


def remedy(row: Row) -> str:
    """What a user can do about a row that does not hold: versions on which it does, and how to see the difference."""
    labels = verified().get(row.package, {}).items() if row.exact else ()
    fitting = [label for label, prints in labels if all(set(target.places) & set(prints) for target in row.targets)]
    # slime is on no registry: a comparison needs two places.
    diff = f"; `april patch diff {row.name}` shows the difference" if row.exact and row.package != "slime" else ""
    return f"Use {row.package} {', '.join(fitting) or row.versions}{diff}"


def _one_version(row: Row, source: Source) -> bool:
    """Whether there is one verified version that all targets are of."""
    found = [part for target in row.targets if (part := locate(target, source)) is not None]
    recorded = verified().get(source.package, {}).values()
    return any(all(prints.get(part.place) == part.fingerprint() for part in found) for prints in recorded)


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
