"""Ports and Ray: what listens here, which process holds it, how many ports are left, and which Rays run."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import Unread, text

RAY_PORTS = {6379: "ray start --head", 8265: "Ray's dashboard"}
RAY_PROGRAMS = ("raylet", "gcs_server")
LISTEN = "0A"
CONNECT_S = 1.0


@dataclass(frozen=True)
class Holder:
    """The process behind a listening port; pid None where it belongs to another user or another container."""

    pid: int | None = None
    name: str = "a process of another user"


@dataclass(frozen=True)
class Sockets:
    """``held``: Ray's default ports that something listens on. ``rays``: Ray's node processes here, by pid."""

    ephemeral: tuple[int, int] | Unread
    in_use: int | Unread
    """Ports of the ephemeral range that a socket holds."""
    held: Mapping[int, Holder]
    rays: Mapping[int, str]
    ray_address: str | None
    ray_answer: str | None
    """Why nothing answers at RAY_ADDRESS; None where something does, or where it was not asked."""


def read(environ: Mapping[str, str], proc: Path = Path("/proc")) -> Sockets:
    """The facts, from the tables of the kernel below ``proc``."""
    span = _span(proc)
    table = _table(proc)
    address = environ.get("RAY_ADDRESS") or None
    listening = {} if isinstance(table, Unread) else {port: node for port, state, node in table if state == LISTEN}
    in_use: int | Unread
    if isinstance(table, Unread):
        in_use = table
    elif isinstance(span, Unread):
        in_use = span
    else:
        in_use = len({port for port, _, _ in table if span[0] <= port <= span[1]})
    held = {port: listening[port] for port in RAY_PORTS if port in listening}
    return Sockets(
        ephemeral=span,
        in_use=in_use,
        held={port: _holder(proc, node) for port, node in held.items()},
        rays=_rays(proc),
        ray_address=address,
        ray_answer=_asked(address) if address else None,
    )


def _span(proc: Path) -> tuple[int, int] | Unread:
    found = text(proc / "sys" / "net" / "ipv4" / "ip_local_port_range")
    if isinstance(found, Unread):
        return found
    words = found.split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else Unread(f"ip_local_port_range holds {found!r}")


def _table(proc: Path) -> list[tuple[int, str, str]] | Unread:
    """Port, state and inode of every TCP socket."""
    rows: list[tuple[int, str, str]] = []
    why = ""
    for name in ("tcp", "tcp6"):
        found = text(proc / "net" / name)
        if isinstance(found, Unread):
            why = why or found.why
            continue
        for line in found.splitlines()[1:]:
            words = line.split()
            if len(words) > 9:
                rows.append((int(words[1].rpartition(":")[2], 16), words[3], words[9]))
    return rows if rows or not why else Unread(why)


def _processes(proc: Path) -> Iterator[tuple[int, Path]]:
    with contextlib.suppress(OSError):
        for entry in proc.iterdir():
            if entry.name.isdigit():
                yield int(entry.name), entry


def _holder(proc: Path, inode: str) -> Holder:
    wanted = f"socket:[{inode}]"
    for pid, entry in _processes(proc):
        with contextlib.suppress(OSError):
            if any(_link(link) == wanted for link in (entry / "fd").iterdir()):
                return Holder(pid, _name(entry))
    return Holder()


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _name(entry: Path) -> str:
    """The program's name: ``comm``, as a command line may hold secrets."""
    found = text(entry / "comm")
    return "unknown" if isinstance(found, Unread) else found


def _rays(proc: Path) -> dict[int, str]:
    found = ((pid, _name(entry)) for pid, entry in _processes(proc))
    return {pid: name for pid, name in found if name in RAY_PROGRAMS}


def _asked(address: str) -> str | None:
    """As ``april train``'s preflight: an address with a scheme, and Ray's own words, are not asked."""
    if address in ("auto", "local") or "://" in address:
        return None
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        return str(error)
    return None
