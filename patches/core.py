"""What a patch is, how it is applied once and undone.

A patch names the module that it targets and a function that changes it. Nothing is imported early: the change happens
right after the target module has been imported, in the processes and on the devices that the patch is for.
"""

from __future__ import annotations

import enum
import functools
import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from april.errors import AprilError

ABSENT = object()


class Process(str, enum.Enum):
    """The kinds of process of a run."""

    DRIVER = "driver"
    ROLLOUT_MANAGER = "rollout_manager"
    ENGINE = "engine"
    TOKENIZER = "tokenizer"
    SCHEDULER = "scheduler"
    TRAIN_ACTOR = "train_actor"


@dataclass(frozen=True, slots=True)
class Patch:
    """One row of the table.

    Attributes:
        name: unique, ``target-what`` in lower case.
        feature: what the user asked for that needs it: ``host`` (always), ``cpu``, ``telemetry``.
        module: the module whose import triggers the patch, with ``{host}`` for the host's package.
        apply: ``module:function`` of the implementation, called with the imported module and a :class:`Patcher`.
        processes: where it must be live before training may start. Elsewhere it is applied too unless ``scoped``.
        reason: why no official hook serves.
        hosts: the hosts that need it.
        scoped: apply in ``processes`` only, because it changes what others in the process tree rely on.
    """

    name: str
    feature: str
    module: str
    apply: str
    processes: frozenset[Process]
    reason: str
    hosts: frozenset[str] = frozenset({"slime", "miles"})
    scoped: bool = False


@dataclass(slots=True)
class Patcher:
    """Replaces attributes and can put the very objects back."""

    _undo: list[tuple[Any, str, Any]] = field(default_factory=list)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set ``owner.name = new``.

        Raises:
            AttributeError: when ``owner`` has no such attribute: the target has changed.
        """
        present = getattr(owner, name)
        old = vars(owner).get(name, ABSENT) if isinstance(owner, type) else present
        setattr(owner, name, new)
        self._undo.append((owner, name, old))

    def add(self, owner: Any, name: str, new: Any) -> None:
        """Set ``owner.name = new``, whether or not there is such an attribute (a build of torch without a device)."""
        self._undo.append((owner, name, getattr(owner, name, ABSENT)))
        setattr(owner, name, new)

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace a function by ``wrapper(original, *args, **kwargs)``.

        Raises:
            AttributeError: when ``owner`` has no such function.
        """
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        self.replace(owner, name, wrapped)

    def undo(self) -> None:
        """Restore every replaced attribute, newest first."""
        while self._undo:
            owner, name, old = self._undo.pop()
            if old is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


_lock = threading.RLock()
_live: dict[str, Patcher] = {}


def apply_once(patch: Patch, module: ModuleType) -> bool:
    """Apply ``patch`` to ``module`` unless it is live in this process; tells whether it was applied now.

    Raises:
        AprilError: naming patch and module when the target is not what the patch was made for; nothing is changed then.
    """
    with _lock:
        if patch.name in _live:
            return False
        where, _, name = patch.apply.partition(":")
        function = getattr(importlib.import_module(where), name)
        patcher = Patcher()
        try:
            function(module, patcher)
        except AttributeError as error:
            patcher.undo()
            raise AprilError(
                f"patch {patch.name} does not fit {module.__name__}, which has changed: {error}"
            ) from error
        except BaseException:
            patcher.undo()
            raise
        _live[patch.name] = patcher
        return True


def undo(name: str) -> None:
    """Undo a live patch; unknown names are an error.

    Raises:
        KeyError: when no such patch is live in this process.
    """
    with _lock:
        _live.pop(name).undo()


def live() -> list[str]:
    """Names of the patches that are live in this process, in the order they were applied."""
    with _lock:
        return list(_live)


def mark_live(names: list[str]) -> None:
    """Count patches that another mechanism (SGLang's hook registry) applied and that were verified as live."""
    with _lock:
        for name in names:
            _live.setdefault(name, Patcher())
