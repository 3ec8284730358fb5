"""All facts of this machine, gathered once; every check is a function of them alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from .reading import Unread, device, fits, hosts, machine, packages, sockets

PINS = "pins.json"
NEEDED = {"jinja2": "3.1", "packaging": "23", "psutil": "5.9", "pyyaml": "6", "wrapt": "1.16"}
"""What setup.py requires, at least."""
OURS = ("april-rollout", *NEEDED, packages.SAVER)
"""Distributions that are looked up beside the pinned ones."""
NOTED = re.compile(
    r"(CUDA|HIP|ROCR)_VISIBLE_DEVICES|(CUDA|HIP)_LAUNCH_BLOCKING|NCCL_GRAPH_REGISTER|PYTORCH_(CUDA_|HIP_)?ALLOC_CONF"
    r"|RAY_EXPERIMENTAL_NOSET_\w+|RAY_ADDRESS|(no|NO|http|HTTP|https|HTTPS|all|ALL)_(proxy|PROXY)|LD_PRELOAD|SGLANG_PLUGINS"
)
"""Environment variables that a check looks at; the values of others are not kept."""


@dataclass(frozen=True)
class Pin:
    """A version that the overlay was checked with, and why that one."""

    version: str
    reason: str


@dataclass(frozen=True)
class Facts:
    """What is known about this machine and this Python."""

    pins: Mapping[str, Pin]
    packages: packages.Packages
    host: hosts.FoundHost
    device: device.Accelerator
    machine: machine.Machine
    sockets: sockets.Sockets
    environ: Mapping[str, str]
    fits: tuple[fits.Fit, ...] | Unread = ()


def gather(environ: Mapping[str, str], device_choice: str = "auto", host_choice: str = "auto") -> Facts:
    """Read everything. A fact that cannot be read is an ``Unread``; nothing is raised."""
    pins = pinned()
    found = packages.read([*pins, *OURS])
    build = found.torch.build if isinstance(found.torch, packages.Torch) else ""
    accelerator, host = device.read(device_choice, build, environ), hosts.read(host_choice, environ)
    return Facts(
        pins=pins,
        packages=found,
        host=host,
        device=accelerator,
        fits=fits.read(host.found, accelerator.name),
        machine=machine.read(environ),
        sockets=sockets.read(environ),
        environ={name: value for name, value in environ.items() if NOTED.fullmatch(name)},
    )


def pinned() -> dict[str, Pin]:
    """``configs/pins.json``."""
    table = json.loads(resources.files("april.configs").joinpath(PINS).read_text(encoding="utf-8"))
    return {name: Pin(row["version"], row["reason"]) for name, row in table.items()}


__all__ = ["Facts", "Pin", "Unread", "gather", "pinned"]
