"""Undo restores the very objects, in whatever order patches come and go."""

from __future__ import annotations

import pickle
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from april.errors import AprilError
from april.patches.patcher import ABSENT, Patcher


class Base:
    def inherited(self) -> str:
        return "inherited"


class Owner(Base):
    @staticmethod
    def fixed() -> str:
        return "fixed"

    @classmethod
    def made(cls) -> str:
        return cls.__name__

    def method(self) -> str:
        return "method"

    size = 3


def plus(original: Any, *args: Any) -> str:
    return str(original(*args)) + "+"


def function() -> str:
    return "function"


@pytest.mark.parametrize("name", ["fixed", "made", "method", "inherited"])
def test_a_wrapped_attribute_keeps_its_kind_and_comes_back(name: str) -> None:
    before = dict(vars(Owner))
    expected = getattr(Owner(), name)()
    patcher = Patcher()
    patcher.wrap(Owner, name, plus)
    assert getattr(Owner(), name)() == expected + "+"
    if name in ("fixed", "made"):
        assert getattr(Owner, name)() == expected + "+"
    patcher.undo()
    assert dict(vars(Owner)) == before
    assert vars(Owner).get(name) is before.get(name)


def test_a_wrapped_function_keeps_its_name_and_its_signature() -> None:
    import inspect

    module = ModuleType("m")
    module.dumps = pickle.dumps  # type: ignore[attr-defined]
    module.function = function  # type: ignore[attr-defined]
    patcher = Patcher()
    patcher.wrap(module, "function", plus)
    assert module.function.__qualname__ == "function"
    assert inspect.signature(module.function) == inspect.signature(function)
    assert pickle.loads(pickle.dumps(function)) is function


def test_what_is_not_there_is_neither_wrapped_nor_replaced() -> None:
    for act in (lambda p: p.wrap(Owner, "missing", plus), lambda p: p.replace(Owner, "missing", None)):
        with pytest.raises(AttributeError):
            act(Patcher())
    with pytest.raises(TypeError, match=r"size of .* is no function"):
        Patcher().wrap(Owner, "size", plus)


def test_an_added_attribute_is_gone_again() -> None:
    module, patcher = ModuleType("m"), Patcher()
    patcher.add(module, "new", 1)
    assert module.new == 1
    patcher.undo()
    assert not hasattr(module, "new")


@given(st.lists(st.sampled_from(["wrap", "replace"]), min_size=1, max_size=5), st.randoms())
def test_patches_of_one_target_are_undone_in_any_order(kinds: list[str], random: Any) -> None:
    def original() -> str:
        return "o"

    module = ModuleType("m")
    module.function = original  # type: ignore[attr-defined]
    patchers = []
    for index, kind in enumerate(kinds):
        patcher = Patcher()
        if kind == "wrap":
            patcher.wrap(module, "function", lambda below, index=index: below() + str(index))
        else:
            patcher.replace(module, "function", lambda index=index: f"r{index}")
        patchers.append((index, kind, patcher))
    standing = list(patchers)
    while standing:
        expected = "o"
        for index, kind, _ in standing:
            expected = expected + str(index) if kind == "wrap" else f"r{index}"
        assert module.function() == expected
        chosen = random.choice(standing)
        chosen[2].undo()
        standing.remove(chosen)
    assert module.function is original


def test_what_others_put_on_top_is_not_thrown_away() -> None:
    module = ModuleType("m")
    module.function = function  # type: ignore[attr-defined]
    patcher = Patcher()
    patcher.wrap(module, "function", plus)
    module.function = theirs = lambda: "theirs"  # type: ignore[attr-defined]
    with pytest.raises(AprilError, match=r"function of .* has been replaced since"):
        patcher.undo()
    assert module.function is theirs


def test_a_failed_undo_undoes_nothing() -> None:
    module = ModuleType("m")
    module.one, module.two = function, function  # type: ignore[attr-defined]
    patcher = Patcher()
    patcher.wrap(module, "one", plus)
    patcher.wrap(module, "two", plus)
    ours = module.two
    module.one = None  # type: ignore[attr-defined]
    with pytest.raises(AprilError):
        patcher.undo()
    assert module.two is ours
    assert patcher.changed[0][2] is function
    assert ABSENT not in [old for _, _, old in patcher.changed]
