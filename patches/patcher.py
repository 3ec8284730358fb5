"""Replaces attributes, and puts the very objects back, in whatever order patches come and go."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from april.errors import AprilError

ABSENT: Any = object()
lock = threading.RLock()


@dataclass(eq=False, slots=True)
class _Layer:
    """One replacement of one attribute: what we put there, and the raw object that was there before.

    ``owned`` is false where the owner had inherited it, or had none: undoing then deletes it.
    """

    owner: Any
    name: str
    below: Any
    owned: bool
    new: Any = ABSENT


# The layers of each attribute that is replaced now, oldest first.
_stacks: dict[tuple[int, str], list[_Layer]] = {}


@dataclass(slots=True)
class Patcher:
    """The replacements of one patch. ``changed`` are the objects that they replaced."""

    _layers: list[_Layer] = field(default_factory=list)

    @property
    def changed(self) -> list[tuple[Any, str, Any]]:
        """Owner, attribute and former object of each replacement."""
        return [(layer.owner, layer.name, layer.below) for layer in self._layers]

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set ``owner.name = new``.

        Raises:
            AttributeError: when ``owner`` has no such attribute: the target has changed.
        """
        getattr(owner, name)
        self.add(owner, name, new)

    def add(self, owner: Any, name: str, new: Any) -> None:
        """Set ``owner.name = new``, whether or not there is such an attribute (a build of torch without a device)."""
        with lock:
            self._push(_layer(owner, name), new)

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace a function by ``wrapper(original, *args, **kwargs)``; static and class methods stay what they are.

        Raises:
            AttributeError: when ``owner`` has no such function.
            TypeError: when it is no function.
        """
        getattr(owner, name)
        with lock:
            layer = _layer(owner, name)
            kind = type(layer.below) if isinstance(layer.below, (staticmethod, classmethod)) else None
            function = _function(layer.below)
            if not callable(function):
                raise TypeError(f"{name} of {owner!r} is no function")

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                # Looked up at each call: the layer below may have been undone.
                return wrapper(_function(layer.below), *args, **kwargs)

            self._push(layer, kind(wrapped) if kind else wrapped)

    def _push(self, layer: _Layer, new: Any) -> None:
        layer.new = new
        setattr(layer.owner, layer.name, new)
        _stacks.setdefault((id(layer.owner), layer.name), []).append(layer)
        self._layers.append(layer)

    def undo(self) -> None:
        """Restore every replaced attribute, newest first. Replacements by other patches stay in place.

        Raises:
            AprilError: where somebody else has replaced an attribute since; nothing is undone then.
        """
        with lock:
            for layer in self._layers:
                top = _stacks[id(layer.owner), layer.name][-1]
                if _raw(layer.owner, layer.name) is not top.new:
                    raise AprilError(
                        f"cannot undo: {layer.name} of {layer.owner!r} has been replaced since by "
                        f"{_raw(layer.owner, layer.name)!r}, which is not ours"
                    )
            while self._layers:
                _pop(self._layers.pop())


def _pop(layer: _Layer) -> None:
    key = id(layer.owner), layer.name
    stack = _stacks[key]
    position = stack.index(layer)
    if position + 1 < len(stack):
        above = stack[position + 1]
        above.below, above.owned = layer.below, layer.owned
    elif layer.owned:
        setattr(layer.owner, layer.name, layer.below)
    else:
        delattr(layer.owner, layer.name)
    stack.remove(layer)
    if not stack:
        del _stacks[key]


def _layer(owner: Any, name: str) -> _Layer:
    own = _raw(owner, name)
    below = own if own is not ABSENT else inspect.getattr_static(owner, name, ABSENT)
    return _Layer(owner, name, below, own is not ABSENT)


def _function(raw: Any) -> Any:
    return raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw


def _raw(owner: Any, name: str) -> Any:
    """What ``owner`` itself holds under ``name``, descriptors unbound; ABSENT where it inherits it or has none."""
    return vars(owner).get(name, ABSENT)
