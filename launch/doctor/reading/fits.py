"""Whether each patch and contract of a run on this machine fits what is installed. Nothing is imported."""

from __future__ import annotations

from dataclasses import dataclass

from april.hosts import Host
from april.launch.train import versions
from april.patches.check import Status, remedy
from april.patches.core import Patch

from . import Unread


@dataclass(frozen=True)
class Fit:
    """One patch or contract. ``fault`` is one line for what does not fit; a contract names no processes."""

    name: str
    package: str
    processes: tuple[str, ...] = ()
    optional: bool = False
    fault: str | None = None
    remedy: str = ""


def read(host: Host | None, device: str) -> tuple[Fit, ...] | Unread:
    """Every row that a run of ``host`` with partial rollouts needs on ``device``."""
    if host is None:
        return Unread("no host was found")
    try:
        reports = versions.reports(host, device, versions.needed(device, april=True, correction=True))
    except OSError as error:
        return Unread(f"{error.filename}: {error.strerror}")
    return tuple(
        Fit(
            finding.row.name,
            finding.row.package,
            tuple(sorted(finding.row.processes)) if isinstance(finding.row, Patch) else (),
            finding.row.optional,
            None if finding.status is Status.OK else f"{finding.status.value}: {finding.detail}",
            remedy(finding.row),
        )
        for report in reports
        for finding in report.findings
    )
