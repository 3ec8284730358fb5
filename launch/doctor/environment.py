"""Environment variables that change which devices are seen, or where requests go."""

from __future__ import annotations

from .check import Check, fail, ok, warn
from .facts import Facts

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
NOSET = "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES"
BLOCKING = ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING")
LOCAL = ("127.0.0.1", "localhost")
PLUGINS = "SGLANG_PLUGINS"
NONE = ("", "-1", "NoDevFiles")


def checks(facts: Facts) -> list[Check]:
    """The checks of this module."""
    found = [_proxy(facts), _plugins(facts)]
    if facts.device.name == "cpu":
        return found
    if facts.device.name == "rocm":
        found += [_rocm_devices(facts), _noset(facts)]
    else:
        found.append(_cuda_devices(facts))
    return [*found, _blocking(facts)]


def _proxy(facts: Facts) -> Check:
    """slime#1714: httpx sends requests between the processes through the proxy, which answers 503."""
    name, environ = "proxy", facts.environ
    used = [each for each in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY") if environ.get(each)]
    if not used:
        return ok(name, "none for http")
    spared = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").replace(" ", "").split(",")
    missing = [host for host in LOCAL if host not in spared]
    if "*" in spared or not missing:
        return ok(name, f"{used[0]} is set, and no_proxy spares this machine")
    said = f"{used[0]} is set, and no_proxy lacks {' and '.join(missing)}: requests to the engines may go through it"
    return warn(name, said, f"export no_proxy={','.join([*filter(None, spared), *missing])}")


def _plugins(facts: Facts) -> Check:
    """SGLang loads every installed plugin, or those that its variable lists."""
    listed = facts.environ.get(PLUGINS)
    if not listed:
        return ok(PLUGINS, "not set: SGLang loads the overlay's plugin")
    if "april" in listed.replace(" ", "").split(","):
        return ok(PLUGINS, listed)
    said = f"{listed!r} leaves the overlay's plugin out: training is refused unless SGLang's tree carries its edits"
    return warn(PLUGINS, said, f"export {PLUGINS}={','.join(filter(None, [listed, 'april']))}")


def _cuda_devices(facts: Facts) -> Check:
    value = facts.environ.get(CUDA)
    if value is None:
        return ok(CUDA, "not set: every GPU is seen")
    if value in NONE:
        return fail(CUDA, f"{value!r} hides every GPU", f"unset {CUDA}, or use --device cpu")
    return ok(CUDA, value)


def _rocm_devices(facts: Facts) -> Check:
    """Ray's AMD manager wants HIP's variable, and raises for ROCR's alone (ray/_private/accelerators/amd_gpu.py)."""
    cuda, hip, rocr = (facts.environ.get(name) for name in (CUDA, HIP, ROCR))
    for name, value in ((HIP, hip), (ROCR, rocr), (CUDA, cuda)):
        if value is not None and value in NONE:
            return fail(HIP, f"{name}={value!r} hides every GPU", f"unset {name}, or use --device cpu")
    if rocr is not None and hip is None:
        return fail(HIP, f"{ROCR}={rocr} alone: Ray refuses it", f"unset {ROCR} and export {HIP}={rocr}")
    if rocr is not None:
        said = f"{ROCR}={rocr} and {HIP}={hip}: the second counts within the first"
        return warn(HIP, said, f"unset {ROCR}: {HIP} is the one that Ray and PyTorch use (ray#51104)")
    if cuda is not None and hip is not None and cuda != hip:
        return warn(HIP, f"{HIP}={hip}, but {CUDA}={cuda}: both mean the same to HIP", f"unset {CUDA}")
    return ok(
        HIP, hip if hip is not None else f"not set{f', {CUDA}={cuda}' if cuda is not None else ': every GPU is seen'}"
    )


def _noset(facts: Facts) -> Check:
    """The hosts give devices to their actors themselves; their list of NOSET variables has ROCR's but not HIP's, which
    Ray since 2.45 uses (miles 0.0.2, miles/ray/utils.py; ray#51104)."""
    if facts.environ.get(NOSET, "").lower() in ("1", "true"):
        return ok(NOSET, "set")
    return warn(NOSET, f"not set: Ray sets {HIP} for each actor, where the host counts all GPUs", f"export {NOSET}=1")


def _blocking(facts: Facts) -> Check:
    on = [name for name in BLOCKING if facts.environ.get(name) not in (None, "", "0")]
    if on:
        return warn("launch blocking", f"{on[0]} is set: every kernel waits, which is for debugging", f"unset {on[0]}")
    return ok("launch blocking", "off")
