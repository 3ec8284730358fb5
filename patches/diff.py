"""What changed in the targets of a patch or contract between two versions."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from april.patches.check import locate
from april.patches.core import Row, Target
from april.patches.sources import Source


@dataclass(frozen=True, slots=True)
class TargetDiff:
    """One target in two versions.

    Attributes:
        target: as in the table.
        status: ``same``, ``formatting`` (only comments, docstrings or layout differ), ``changed``, ``missing`` (in
            both), ``removed`` or ``added``.
        text: a unified diff, empty where the text is the same.
    """

    target: str
    status: str
    text: str


def compare(row: Row, old: Source, new: Source) -> list[TargetDiff]:
    """Each target of a row that lies in the sources' package. Raises SyntaxError where a source is no Python."""
    return [_compare(target, old, new) for target in row.targets if target.package == old.package]


def _compare(target: Target, old: Source, new: Source) -> TargetDiff:
    (old_text, old_print), (new_text, new_print) = _text(target, old), _text(target, new)
    lines = difflib.unified_diff(
        old_text.splitlines(keepends=True),
        new_text.splitlines(keepends=True),
        f"{target} {old.version}",
        f"{target} {new.version}",
    )
    if old_print is None or new_print is None:
        status = "missing" if old_print == new_print else "removed" if new_print is None else "added"
    elif old_print == new_print:
        status = "same" if old_text == new_text else "formatting"
    else:
        status = "changed"
    return TargetDiff(str(target), status, "".join(lines))


def _text(target: Target, source: Source) -> tuple[str, str | None]:
    found = locate(target, source)
    if found is None:
        return "", None
    return found.text(), found.fingerprint()
