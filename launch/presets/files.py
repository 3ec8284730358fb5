"""One preset's file: read, checked, merged with what it extends.

A file is a mapping with the keys of its kind. ``extends`` names another of the same kind, whose values it takes over:
mappings are merged key by key, anything else is replaced, and null takes a value away.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from april.errors import UsageError

Flag = bool | int | float | str | list[Any] | None
"""A host's flag: True is a switch, False and None leave it out, a list is several values."""

COMMON = {"extends": str, "summary": str, "abstract": bool, "flags": dict, "environment": dict, "with": dict}
KINDS: Mapping[str, Mapping[str, type]] = {
    "models": {"checkpoint": str, "architecture": dict, "thinks": bool, "made": str},
    "data": {"source": str, "rewards": dict, "made": str},
    "algorithms": {},
    "hardware": {"vendor": str, "gpus_per_node": int, "memory_gb": int, "image": str},
    "runs": {"model": str, "data": str, "algorithm": str, "hardware": str},
    "base": {},
}
"""The keys that each kind of preset has beside the common ones, and their types."""
NEEDED: Mapping[str, tuple[str, ...]] = {
    "models": ("architecture", "checkpoint"),
    "hardware": ("vendor", "gpus_per_node", "image"),
    "runs": ("model", "data"),
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset with all that it extends.

    flags, environment
        Of the host and of every process of the run.
    cases
        ``with``: flags that hold with an algorithm, a hardware, a vendor, ``april``, ``spec`` or ``async``.
    own
        What only its kind has (see KINDS).
    files
        Where it comes from, the one that was asked for first.
    """

    kind: str
    name: str
    summary: str = ""
    abstract: bool = False
    flags: Mapping[str, Flag] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    cases: Mapping[str, Mapping[str, Flag]] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def read(path: Path, kind: str) -> dict[str, Any]:
    """The mapping in a file, its keys and types checked.

    Raises:
        UsageError: naming the file and what is wrong in it.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"preset {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"preset {path}: no YAML ({' '.join(str(error).split())})") from error
    if not isinstance(found, dict):
        raise UsageError(f"preset {path}: it holds a {type(found).__name__}; a mapping is expected")
    known = {**COMMON, **KINDS[kind]}
    for key, value in found.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise UsageError(f"preset {path}: unknown key {key!r} ({hint})")
        if value is not None and type(value) is not known[key]:
            raise UsageError(f"preset {path}: {key} is {value!r}; a {known[key].__name__} is expected")
    _check_flags(path, "flags", found.get("flags") or {})
    for case, flags in (found.get("with") or {}).items():
        if not isinstance(flags, dict):
            raise UsageError(f"preset {path}: with {case} is {flags!r}; a mapping of flags is expected")
        _check_flags(path, f"with {case}", flags)
    return found


def _check_flags(path: Path, where: str, flags: Mapping[Any, Any]) -> None:
    for name, value in flags.items():
        if not isinstance(name, str) or name.startswith("-"):
            raise UsageError(f"preset {path}: {where}: flag {name!r}; give its name without dashes in front")
        if isinstance(value, dict):
            raise UsageError(f"preset {path}: {where}: {name} is a mapping; give a value or a list")


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` on top of ``base``: mappings key by key, anything else replaced."""
    found = dict(base)
    for key, value in over.items():
        below = found.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        found[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return found


def preset(kind: str, name: str, body: Mapping[str, Any], files: tuple[str, ...]) -> Preset:
    """The preset of a merged mapping.

    Raises:
        UsageError: when it lacks what its kind needs.
    """
    if not body.get("abstract"):
        lacking = [key for key in NEEDED.get(kind, ()) if body.get(key) is None]
        if lacking:
            raise UsageError(f"preset {files[0]}: it lacks {', '.join(lacking)}")
    return Preset(
        kind=kind,
        name=name,
        summary=body.get("summary") or "",
        abstract=bool(body.get("abstract")),
        flags=body.get("flags") or {},
        environment={key: _text(value) for key, value in (body.get("environment") or {}).items()},
        cases=body.get("with") or {},
        own={key: body[key] for key in KINDS[kind] if body.get(key) is not None},
        files=files,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)
