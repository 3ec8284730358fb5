"""Writes the patches into a source tree as small marked edits, and takes them out again, byte for byte.

For users who cannot load plugins or import hooks. A target module gets three lines at its end, which call the same
implementation (``april.patches.edited``); nothing inside the module changes. ``.april-patches.json`` in the tree lists
the edited files with the SHA-256 of what they were.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from april.errors import UsageError
from april.patches.core import Patch
from april.patches.sources import DISTRIBUTIONS

MANIFEST = ".april-patches.json"
BEGIN = b"# >>> april patch (`april patch revert --to TREE` takes these lines out)"
END = b"# <<< april patch"
CALL = b'__import__("april.patches.edited", fromlist=["apply"]).apply(__name__)'
ROOTS = ("", "python", "src")


@dataclass(frozen=True, slots=True)
class Edit:
    """One file to edit, relative to the tree, and the patches that it carries."""

    file: str
    patches: tuple[str, ...]


def plan(tree: Path, package: str, patches: Iterable[Patch]) -> list[Edit]:
    """The files of ``tree`` that must be edited for these patches: those whose import triggers them.

    Raises:
        UsageError: when a module that a patch waits for is not in the tree.
    """
    files: dict[str, list[str]] = {}
    for patch in patches:
        modules = [module for module in patch.triggers(package) if module.partition(".")[0] == package]
        found = [file for module in modules if (file := _file_of(tree, module)) is not None]
        if modules and not found:
            raise UsageError(f"{tree} has no module {' or '.join(modules)}, which {patch.name} changes")
        for file in found:
            files.setdefault(str(file.relative_to(tree)), []).append(patch.name)
    return [Edit(file, tuple(names)) for file, names in sorted(files.items())]


def package_in(tree: Path) -> str:
    """The package whose source ``tree`` holds.

    Raises:
        UsageError: when it is no folder or holds none of the packages that we patch.
    """
    if not tree.is_dir():
        raise UsageError(f"{tree} is no folder: give the source tree to edit")
    for package in ("sglang", "slime", "miles"):
        if any((tree / root / package).is_dir() for root in ROOTS):
            return package
    raise UsageError(f"{tree} holds none of {', '.join(DISTRIBUTIONS)}: give the folder that contains the package")


def apply(tree: Path, edits: list[Edit]) -> list[str]:
    """Edit the files; returns those that were edited now. Interrupted at any point, ``revert`` restores the tree.

    Raises:
        UsageError: when a file cannot be written.
    """
    manifest = _read_manifest(tree)
    for edit in edits:
        if BEGIN not in (tree / edit.file).read_bytes():
            manifest[edit.file] = _digest((tree / edit.file).read_bytes())
    _replace(tree / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n")
    edited = []
    for edit in edits:
        content = (tree / edit.file).read_bytes()
        if BEGIN not in content:
            _replace(tree / edit.file, content + _block(content))
            edited.append(edit.file)
    return edited


def revert(tree: Path) -> tuple[list[str], list[str]]:
    """Take our lines out; returns the files restored, and those that somebody else has edited as well.

    Raises:
        UsageError: when the tree was not edited by ``apply``, or our lines in a file were changed; nothing is done.
    """
    manifest = _read_manifest(tree)
    if not manifest:
        raise UsageError(f"{tree} has no {MANIFEST}: `april patch apply` has not edited it")
    restored, edited_since = {}, []
    for file, original in manifest.items():
        try:
            content = (tree / file).read_bytes()
        except OSError as error:
            raise UsageError(f"{tree / file}: {error.strerror}; nothing was reverted") from error
        if _digest(content) == original:
            continue
        bare = _without_block(content)
        if bare is None:
            raise UsageError(f"{tree / file}: our lines in it were changed; nothing was reverted. Restore it by hand")
        restored[file] = bare
        if _digest(bare) != original:
            edited_since.append(file)
    for file, bare in restored.items():
        _replace(tree / file, bare)
    (tree / MANIFEST).unlink()
    return list(restored), edited_since


def _block(content: bytes) -> bytes:
    """Our lines, in the file's own line ends; a file without a last line end says so, to be restored without one."""
    eol = b"\r\n" if b"\r\n" in content else b"\n"
    whole = not content or content.endswith(b"\n")
    begin = BEGIN if whole else BEGIN + b" no-eol"
    return (b"" if whole else eol) + eol.join((begin, CALL, END, b""))


def _without_block(content: bytes) -> bytes | None:
    """The content without our lines, or None where they are not there as we wrote them."""
    start = content.find(BEGIN)
    if start < 0:
        return None
    for eol in (b"\r\n", b"\n"):
        for suffix in (b"", b" no-eol"):
            block = eol.join((BEGIN + suffix, CALL, END, b""))
            if content[start : start + len(block)] == block:
                before = content[:start].removesuffix(eol) if suffix else content[:start]
                return before + content[start + len(block) :]
    return None


def _file_of(tree: Path, module: str) -> Path | None:
    path = Path(*module.split("."))
    candidates = [tree / root / form for root in ROOTS for form in (path.with_suffix(".py"), path / "__init__.py")]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _read_manifest(tree: Path) -> dict[str, str]:
    path = tree / MANIFEST
    if not path.is_file():
        return {}
    try:
        data: dict[str, str] = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} cannot be read ({error}): restore the tree from its source") from error
    return data


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, with the permissions that it had."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(content)
        if path.exists():
            draft.chmod(path.stat().st_mode)
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; `april patch revert` restores what was edited") from error
    finally:
        draft.unlink(missing_ok=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
