"""A patch goes live once, from any thread, and undo restores the very objects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import ModuleType

import pytest

from april.errors import AprilError
from april.patches import core
from april.patches.core import Patch, Patcher, Process


class Owner:
    @staticmethod
    def fixed() -> str:
        return "original"

    def method(self) -> str:
        return "original"


def implementation(module: ModuleType, patcher: Patcher) -> None:
    module.applied = getattr(module, "applied", 0) + 1  # type: ignore[attr-defined]
    patcher.wrap(module, "function", lambda original: original() + "+patched")


def failing(module: ModuleType, patcher: Patcher) -> None:
    patcher.replace(module, "function", None)
    raise ValueError("no")


@pytest.fixture
def target() -> Iterator[ModuleType]:
    module = ModuleType("target")
    module.function = lambda: "original"  # type: ignore[attr-defined]
    yield module
    for name in core.live():
        core.undo(name)


def row(name: str, apply: str) -> Patch:
    return Patch(name, "host", "target", f"{__name__}:{apply}", frozenset({Process.DRIVER}), "a test")


def test_applied_once_from_many_threads(target: ModuleType) -> None:
    threads = [threading.Thread(target=core.apply_once, args=(row("p", "implementation"), target)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.applied == 1
    assert target.function() == "original+patched"
    assert core.live() == ["p"]


def test_undo_restores_the_very_object(target: ModuleType) -> None:
    before = target.function
    core.apply_once(row("p", "implementation"), target)
    core.undo("p")
    assert target.function is before
    assert core.live() == []


def test_a_patch_that_fails_leaves_nothing_behind(target: ModuleType) -> None:
    before = target.function
    with pytest.raises(ValueError, match="no"):
        core.apply_once(row("p", "failing"), target)
    assert target.function is before
    assert core.live() == []


def test_class_attributes_keep_their_descriptors() -> None:
    patcher = Patcher()
    raw, method = vars(Owner)["fixed"], vars(Owner)["method"]
    patcher.replace(Owner, "fixed", staticmethod(lambda: "new"))
    patcher.replace(Owner, "method", lambda self: "new")
    assert Owner.fixed() == Owner().method() == "new"
    patcher.undo()
    assert vars(Owner)["fixed"] is raw
    assert vars(Owner)["method"] is method


def test_what_is_not_there_is_neither_wrapped_nor_replaced(target: ModuleType) -> None:
    with pytest.raises(AttributeError):
        Patcher().wrap(target, "missing", lambda original: original())
    with pytest.raises(AttributeError):
        Patcher().replace(target, "missing", None)


def test_a_changed_target_is_named_with_its_patch(target: ModuleType) -> None:
    del target.function
    with pytest.raises(AprilError, match=r"patch p does not fit target, which has changed: .*'function'"):
        core.apply_once(row("p", "implementation"), target)
    assert core.live() == []
