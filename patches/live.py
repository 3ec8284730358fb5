"""The patches that are live in this process: each applied once, from whichever thread, and undone.

Before a patch changes anything, the code that it targets is compared with what was verified. One that does not match
is an error, or, where the feature works without it, skipped with a line.
"""

from __future__ import annotations

import importlib
import sys
import time
from types import ModuleType
from typing import Any

from april.errors import AprilError
from april.patches.core import Patch
from april.patches.patcher import ABSENT, Patcher, lock

_live: dict[str, Patcher] = {}
_skipped: dict[str, str] = {}
_milliseconds: dict[str, float] = {}


def apply_once(patch: Patch, module: ModuleType, late: bool = False) -> bool:
    """Apply ``patch`` to ``module`` unless it is live in this process; tells whether it was applied now.

    ``late``: the module had been imported before the patch was armed.

    Raises:
        AprilError: naming patch and target when the target is not what the patch was made for, or when others have
            taken the target already; nothing is changed then.
    """
    with lock:
        if patch.name in _live or patch.name in _skipped:
            return False
        started = time.perf_counter()
        try:
            if patch.exact:
                verify(patch)
            patcher = _apply(patch, module, late)
        except AprilError as error:
            if not patch.optional:
                raise
            skip(patch, str(error))
            return False
        _live[patch.name] = patcher
        _milliseconds[patch.name] = 1000 * (time.perf_counter() - started)
        return True


def verify(patch: Patch) -> None:
    """Compare the targets, as this process would import them, with what was verified.

    Raises:
        AprilError: what changed, expected and found, and what to do.
    """
    from april.patches import check, sources  # here: a process that nothing is patched in does not need them

    source = sources.installed(patch.package)
    if source is None:
        raise AprilError(f"patch {patch.name}: {patch.package} is not installed")
    finding = check.examine(patch, source)
    if finding.status is not check.Status.OK:
        raise AprilError(f"patch {finding.detail}. {check.remedy(patch)}")


def _apply(patch: Patch, module: ModuleType, late: bool) -> Patcher:
    where, _, name = patch.apply.partition(":")
    function = getattr(importlib.import_module(where), name)
    patcher = Patcher()
    try:
        if patch.around:
            for target in patch.targets:
                wrap_around(patcher, module, target.places[0], function)
        else:
            function(module, patcher)
        if late:
            _refuse_copies(patch, module, patcher)
    except (AttributeError, TypeError) as error:
        patcher.undo()
        raise AprilError(f"patch {patch.name} does not fit {module.__name__}, which has changed: {error}") from error
    except BaseException:
        patcher.undo()
        raise
    return patcher


def wrap_around(patcher: Patcher, module: ModuleType, place: str, wrapper: Any) -> None:
    """Wrap the function at ``module:Class.name`` if that is ``module``'s."""
    home, _, attribute = place.partition(":")
    if home != module.__name__:
        return
    owner: Any = module
    *outer, last = attribute.split(".")
    for name in outer:
        owner = getattr(owner, name)
    patcher.wrap(owner, last, wrapper)


def _refuse_copies(patch: Patch, module: ModuleType, patcher: Patcher) -> None:
    """A module that did ``from module import name`` before the patch would go on with the original."""
    for owner, attribute, original in patcher.changed:
        if owner is not module or original is ABSENT or isinstance(original, (bool, int, float, str)):
            continue
        for other in list(sys.modules.values()):
            if other is not module and isinstance(other, ModuleType):
                names = [key for key, value in list(vars(other).items()) if value is original]
                if names:
                    raise AprilError(
                        f"patch {patch.name} comes too late: {other.__name__}.{names[0]} holds the unpatched "
                        f"{attribute} of {module.__name__} already. Arm the overlay before it is imported "
                        "(worker_process_setup_hook)"
                    )


def skip(patch: Patch, reason: str) -> None:
    """Note that an optional patch is not applied in this process, and why, with a line."""
    if patch.name not in _skipped:
        _skipped[patch.name] = reason
        print(f"april: skipped: {reason}", file=sys.stderr, flush=True)


def undo(name: str) -> None:
    """Undo a live patch; unknown names are an error.

    Raises:
        KeyError: when no such patch is live in this process.
        AprilError: when somebody else has replaced its target since; it stays live then.
    """
    with lock:
        _live[name].undo()
        del _live[name]


def live() -> list[str]:
    """Names of the patches that are live in this process, in the order they were applied."""
    with lock:
        return list(_live)


def skipped() -> dict[str, str]:
    """The optional patches that were not applied in this process, and why."""
    with lock:
        return dict(_skipped)


def milliseconds() -> dict[str, float]:
    """What applying each live patch took, its verification and the imports of its implementation included."""
    with lock:
        return dict(_milliseconds)


def mark_live(names: list[str]) -> None:
    """Count patches that another mechanism (SGLang's hook registry) applied and that were verified as live."""
    with lock:
        for name in names:
            _live.setdefault(name, Patcher())
