"""Which host a run would get: ``april train``'s own search, without its last resort, a clone of slime."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from april.errors import UsageError
from april.hosts import Host
from april.hosts.resolve import SLIME_PIN, resolve
from april.launch.environment.paths import miles_root

from .packages import constants


@dataclass(frozen=True)
class FoundHost:
    """The host, or the fault of the one that was asked for; neither where there is none here."""

    name: str | None = None
    version: str = ""
    root: str = ""
    megatron: str | None = None
    """The version of megatron-core that comes with it; None where it is the user's own."""
    fault: str | None = None
    found: Host | None = None
    """The host itself, as a run would use it."""


def read(choice: str, environ: Mapping[str, str]) -> FoundHost:
    """The host for ``--host choice``."""
    try:
        if not _is_here(choice, environ):
            return FoundHost()
        host = resolve(choice, None, environ)
        return FoundHost(host.name, host.version, str(host.paths()[0]), _megatron(host), found=host)
    except (UsageError, OSError) as error:
        return FoundHost(fault=str(error))


def _is_here(choice: str, environ: Mapping[str, str]) -> bool:
    """Whether resolving needs no clone, which would take the network and up to 20 seconds."""
    if choice == "miles" or environ.get("SLIME_DIR") or (choice == "auto" and miles_root() is not None):
        return True
    cache = Path(environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "april" / f"slime-{SLIME_PIN}"
    if cache.is_dir():
        return True
    spec = importlib.util.find_spec("slime")
    places = spec.submodule_search_locations if spec else None
    return any((Path(place).parent / "train.py").is_file() for place in places or ())


def _megatron(host: Host) -> str | None:
    for root in host.paths():
        path = Path(root) / "megatron" / "core" / "package_info.py"
        if path.is_file():
            try:
                said = constants(path.read_text(encoding="utf-8"))
            except (SyntaxError, ValueError):
                return None
            return ".".join(str(said.get(part, 0)) for part in ("MAJOR", "MINOR", "PATCH")) + str(
                said.get("PRE_RELEASE", "")
            )
    return None
