"""Writes the patches into a source tree as small marked edits, and takes them out again, byte for byte.

For users who cannot load plugins or import hooks. A target module gets three lines at its end, which call the same
implementation (``april.patches.edited``); nothing inside the module changes. ``.april-patches.json`` in the tree lists
the edited files with the SHA-256 of what they were.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from april.errors import UsageError
from april.patches.core import Patch

MANIFEST = ".april-patches.json"
BEGIN = b"# >>> april patch (`april patch revert --to TREE` takes these lines out)"
END = b"# <<< april patch"
CALL = b'__import__("april.patches.edited", fromlist=["apply"]).apply(__name__)'
ROOTS = ("", "python", "src")
EDITABLE = ("sglang", "slime", "miles")


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


def packages_in(tree: Path) -> list[str]:
    """The packages in ``tree`` that can be edited.

    Raises:
        UsageError: when it is no folder or holds none of them.
    """
    if not tree.is_dir():
        raise UsageError(f"{tree} is no folder: give the source tree to edit")
    found = [name for name in EDITABLE if any((tree / root / name).is_dir() for root in ROOTS)]
    if not found:
        raise UsageError(f"{tree} holds none of {', '.join(EDITABLE)}: give the folder that contains the package")
    return found


def apply(tree: Path, edits: list[Edit]) -> list[str]:
    """Edit the files; returns those that were edited now. Interrupted at any point, ``revert`` restores the tree.

    Raises:
        UsageError: when a file cannot be read or written.
    """
    manifest = _read_manifest(tree)
    contents = {edit.file: _read(tree / edit.file) for edit in edits}
    for file, content in contents.items():
        bare = content if BEGIN not in content else _without_block(content)
        if bare is not None and (BEGIN not in content or file not in manifest):
            manifest[file] = _digest(bare)
    _replace(tree / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n")
    edited = []
    for file, content in contents.items():
        if BEGIN not in content:
            _replace(tree / file, content + _block(content))
            edited.append(file)
    return edited


@dataclass(frozen=True, slots=True)
class Reverted:
    """What ``revert`` did with a file: ``restored`` byte for byte, our lines taken out of one ``edited`` since, or
    ``replaced`` by a version without them (or removed), where nothing was to be done."""

    file: str
    how: str


def revert(tree: Path) -> list[Reverted]:
    """Take our lines out. Without a manifest (a copied tree) they are looked for.

    Raises:
        UsageError: when the tree was not edited by ``apply``, or our lines in a file were changed; nothing is done.
    """
    manifest = _read_manifest(tree) or dict.fromkeys(_edited_files(tree), "")
    if not manifest:
        raise UsageError(f"{tree} has no {MANIFEST} and none of our lines: `april patch apply` has not edited it")
    done, bare_files = [], {}
    for file, original in manifest.items():
        content = _read(tree / file) if (tree / file).exists() else b""
        if BEGIN not in content:
            how = "restored" if _digest(content) == original else "replaced"
            done.append(Reverted(file, how))
            continue
        bare = _without_block(content)
        if bare is None:
            raise UsageError(f"{tree / file}: our lines in it were changed; nothing was reverted. Restore it by hand")
        bare_files[file] = bare
        done.append(Reverted(file, "restored" if _digest(bare) == original else "edited"))
    for file, bare in bare_files.items():
        _replace(tree / file, bare)
    (tree / MANIFEST).unlink(missing_ok=True)
    return done


def _edited_files(tree: Path) -> list[str]:
    folders = [tree / root / name for root in ROOTS for name in EDITABLE]
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.rglob("*.py"))]
    return [str(path.relative_to(tree)) for path in files if BEGIN in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


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
                before, after = content[:start], content[start + len(block) :]
                # Where somebody has written more since, the line end that we added is theirs now.
                return (before.removesuffix(eol) if suffix and not after else before) + after
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
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}): remove it, and our lines are looked for") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} is no list of files: remove it, and our lines are looked for")
    return {str(file): str(digest) for file, digest in data.items()}


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, with the permissions and the owner that it had; a link stays one."""
    path = path.resolve()
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            draft.write_bytes(content)
            if path.exists():
                had = path.stat()
                draft.chmod(had.st_mode)
                with contextlib.suppress(PermissionError):
                    os.chown(draft, had.st_uid, had.st_gid)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; `april patch revert` restores what was edited") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
