"""A patch goes live once, from any thread; one that does not fit is refused, or skipped with a line."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from april.errors import AprilError
from april.patches import live
from april.patches.core import Feature, Patch, Process, targets


def implementation(module: Any, patcher: Any) -> None:
    module.applied = getattr(module, "applied", 0) + 1
    patcher.wrap(module, "function", lambda original: original() + "+patched")


def failing(module: Any, patcher: Any) -> None:
    patcher.replace(module, "function", None)
    raise ValueError("no")


@pytest.fixture
def target() -> Iterator[Any]:
    module = ModuleType("target")
    module.function = lambda: "original"  # type: ignore[attr-defined]
    yield module
    for name in live.live():
        live.undo(name)
    live._skipped.clear()


def row(apply: str = "implementation", **changes: Any) -> Patch:
    fields: dict[str, Any] = {
        "name": "p",
        "feature": Feature.HOST,
        "targets": targets("target:function"),
        "versions": ">=0",
        "apply": f"{__name__}:{apply}",
        "processes": frozenset({Process.DRIVER}),
        "reason": "a test",
        "link": "none",
        "until": "never",
        "exact": False,
    }
    return Patch(**{**fields, **changes})


def test_applied_once_from_many_threads(target: Any) -> None:
    threads = [threading.Thread(target=live.apply_once, args=(row(), target)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.applied == 1
    assert target.function() == "original+patched"
    assert live.live() == ["p"]


def test_undo_restores_the_very_object(target: Any) -> None:
    before = target.function
    live.apply_once(row(), target)
    live.undo("p")
    assert target.function is before
    assert live.live() == []


def test_a_patch_that_fails_leaves_nothing_behind(target: Any) -> None:
    before = target.function
    with pytest.raises(ValueError, match="no"):
        live.apply_once(row("failing"), target)
    assert target.function is before
    assert live.live() == []


def test_a_changed_target_is_named_with_its_patch(target: Any) -> None:
    del target.function
    with pytest.raises(AprilError, match=r"patch p does not fit target, which has changed: .*'function'"):
        live.apply_once(row(), target)
    assert live.live() == []


def test_an_optional_patch_that_does_not_fit_is_skipped_with_one_line(target: Any, capsys: Any) -> None:
    del target.function
    assert not live.apply_once(row(optional=True), target)
    assert not live.apply_once(row(optional=True), target)
    line = capsys.readouterr().err
    assert line.count("april: skipped: patch p does not fit target") == line.count("\n") == 1
    assert list(live.skipped()) == ["p"]


def test_too_late_is_an_error_that_names_who_holds_the_original(target: Any, monkeypatch: Any) -> None:
    early = ModuleType("early")
    early.mine = target.function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "early", early)
    before = target.function
    with pytest.raises(AprilError, match=r"too late: early\.mine holds the unpatched function of target already"):
        live.apply_once(row(), target, late=True)
    assert target.function is before
    del early.mine
    assert live.apply_once(row(), target, late=True)


def test_an_exact_patch_is_refused_where_the_package_is_not_installed(target: Any) -> None:
    with pytest.raises(AprilError, match="patch p: no_such_package is not installed"):
        live.apply_once(row(targets=targets("no_such_package.m:function"), exact=True), target)
