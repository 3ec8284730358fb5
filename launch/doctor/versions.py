"""Versions: this Python, the overlay, the host, and each pin against what is installed."""

from __future__ import annotations

from april.hosts.resolve import SLIME_PIN

from .check import Check, fail, ok, warn
from .facts import NEEDED, Facts, Pin
from .numbers import public, release

PYTHONS = ((3, 10), (3, 11), (3, 12))
OWN_BUILDS = ("torch", "torchvision")
"""Pinned as CPU builds; on a GPU the user's own builds count."""
OF_THE_HOST = ("miles-rl", "slime", "megatron-core")
"""Pinned, but not distributions that pip installs: see ``_host``."""
SETUP = "make setup"


def checks(facts: Facts) -> list[Check]:
    """The checks of this module."""
    pins = [name for name in facts.pins if name not in (*OF_THE_HOST, "python")]
    return [_python(facts), _overlay(facts), *_host(facts), *(_pin(facts, name) for name in pins)]


def _python(facts: Facts) -> Check:
    version = facts.packages.python
    said = f"{'.'.join(map(str, version))} in {facts.packages.prefix}"
    locked = release(facts.pins["python"].version)
    if facts.device.name == "cpu" and version[:2] != locked:
        return warn("python", f"{said}; the lock files are for {facts.pins['python'].version}", f"{SETUP} DEVICE=cpu")
    if version[:2] not in PYTHONS:
        return fail("python", f"{said}; 3.10 to 3.12 serve", "run it with a Python 3.10, 3.11 or 3.12")
    return ok("python", said)


def _overlay(facts: Facts) -> Check:
    name, installed = "april", facts.packages.versions
    if "april-rollout" not in installed:
        return fail(name, "the overlay is not installed in this Python", _fix(facts))
    for requirement, least in NEEDED.items():
        have = installed.get(requirement)
        if have is None or release(have) < release(least):
            return fail(name, f"{requirement} >= {least} is needed, {have or 'none'} is installed", _fix(facts))
    if "april" not in facts.packages.plugins:
        return fail(name, "SGLang's plugin entry point is not registered: no patch would reach it", _fix(facts))
    return ok(name, f"{installed['april-rollout']}, registered as a plugin of SGLang")


def _host(facts: Facts) -> list[Check]:
    host = facts.host
    if host.fault:
        return [fail("host", host.fault, f"{SETUP}, or give slime's tree at its pin by SLIME_DIR")]
    if host.name is None:
        return [
            warn(
                "host",
                "neither slime nor miles is here; april train will try to clone slime",
                f"{SETUP} DEVICE=cpu (it unpacks miles), or give slime's tree by SLIME_DIR",
            )
        ]
    found = [_host_version(facts)]
    if host.megatron is not None:
        found.append(_compare("megatron-core", host.megatron, facts.pins["megatron-core"], SETUP))
    elif have := facts.packages.versions.get("megatron-core"):
        found.append(_compare("megatron-core", have, facts.pins["megatron-core"], "use the pinned Megatron-LM"))
    return found


def _host_version(facts: Facts) -> Check:
    """Whether its sources are those that the patches were made on is checked with the patches."""
    host = facts.host
    pin = facts.pins["slime" if host.name == "slime" else "miles-rl"]
    said = f"{host.name} {host.version} in {host.root}"
    if host.version == pin.version or (host.name == "slime" and host.version == SLIME_PIN):
        return ok("host", said)
    remedy = f"check out slime's commit {SLIME_PIN}" if host.name == "slime" else SETUP
    return warn("host", f"{said}; pinned is {pin.version} ({pin.reason})", remedy)


def _pin(facts: Facts, name: str) -> Check:
    pin, have = facts.pins[name], facts.packages.versions.get(name)
    if have is None:
        return fail(name, f"not installed; pinned is {pin.version} ({pin.reason})", _remedy(facts, name))
    # Two that break a run in a known way (configs/pins.json gives the reason with the pin).
    breaks = {"numpy": release(have)[:1] >= (2,), "fastapi": release(have) > release(pin.version)}
    if breaks.get(name):
        return fail(name, f"{have}; pinned is {pin.version} ({pin.reason})", _remedy(facts, name))
    if facts.device.name != "cpu" and name in OWN_BUILDS:
        return ok(name, f"{have}, your own build")
    return _compare(name, have, pin, _remedy(facts, name))


def _compare(name: str, have: str, pin: Pin, remedy: str) -> Check:
    if public(have) == pin.version:
        return ok(name, have)
    return warn(name, f"{have}; pinned is {pin.version} ({pin.reason})", remedy)


def _remedy(facts: Facts, name: str) -> str:
    """On a CPU the set-up owns the environment; beside a user's own stack it installs nothing but the overlay."""
    if facts.device.name == "cpu":
        return SETUP
    if name in OWN_BUILDS:
        return f"install the build of {name} for your {facts.device.name} release"
    return f"python -m pip install --no-deps {name}=={facts.pins[name].version}"


def _fix(facts: Facts) -> str:
    return SETUP if facts.device.name == "cpu" else f"{SETUP} PYTHON={facts.packages.prefix}/bin/python"
