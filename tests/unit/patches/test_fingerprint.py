"""A fingerprint follows the code of an attribute, not its comments, its layout or the Python that reads it."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from april.patches import fingerprint

SOURCE = b'''
"""A module."""
import os.path
from x import a as b, c
LIMIT: int = 3
if LIMIT:
    def choice(): return 1
else:
    def choice(): return 2
try:
    import fast
except ImportError:
    fast = None
class Thing:
    """What it is."""
    size = 3
    @property
    def area(self):
        return self.size
async def go(x): ...
'''


def of(source: str, attribute: str = "f") -> str:
    return fingerprint.of(fingerprint.find(source.encode(), attribute))


def test_comments_docstrings_and_layout_do_not_count() -> None:
    plain = of("def f(a):\n    return a+1\n")
    assert plain == of('# why\ndef f(a):\n    """Doc."""\n\n    return (a + 1)  # so\n')
    assert plain == of("if True:\n    x = 1\n\n    def f(a): return a + 1\n")


@pytest.mark.parametrize(
    "changed",
    [
        "def f(a):\n    return a+2\n",
        "def f(a, b=1):\n    return a+1\n",
        "async def f(a):\n    return a+1\n",
        "@cache\ndef f(a):\n    return a+1\n",
        "def f(a: int):\n    return a+1\n",
        'def f(a):\n    return "a+1"\n',
    ],
)
def test_code_counts(changed: str) -> None:
    assert of("def f(a):\n    return a+1\n") != of(changed)


def test_what_is_around_it_does_not_count() -> None:
    assert of("def f(): pass\ndef g(): pass\n") == of("x = 1\ndef g(): return 1\ndef f(): pass\n")


@pytest.mark.parametrize(
    "name", ["os", "b", "c", "LIMIT", "choice", "fast", "Thing", "Thing.size", "Thing.area", "go", ""]
)
def test_everything_that_a_module_binds_is_found(name: str) -> None:
    assert fingerprint.find(SOURCE, name)


@pytest.mark.parametrize("name", ["a", "Thing.volume", "missing", "area", "go.x"])
def test_what_it_does_not_bind_is_not(name: str) -> None:
    assert fingerprint.find(SOURCE, name) == []


def test_all_branches_count() -> None:
    assert len(fingerprint.find(SOURCE, "choice")) == 2
    assert len(fingerprint.find(SOURCE, "fast")) == 2


def test_an_import_counts_alone() -> None:
    assert of("from x import f, g\n") == of("from x import f\n") != of("from y import f\n")


def test_the_text_has_the_decorators() -> None:
    nodes = fingerprint.find(SOURCE, "Thing.area")
    assert fingerprint.text(SOURCE, nodes) == "    @property\n    def area(self):\n        return self.size\n"


def test_empty_fields_that_newer_pythons_add_do_not_count() -> None:
    old, new = ast.parse("def f(): pass").body, ast.parse("def f(): pass").body
    function = new[0]
    function.type_params = []  # type: ignore[attr-defined]
    function._fields = (*ast.FunctionDef._fields, "type_params")  # type: ignore[misc]
    assert fingerprint.of(list(old)) == fingerprint.of(list(new))


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters="\x00"), max_size=60))
def test_any_comment_is_ignored(comment: str) -> None:
    line = " ".join(comment.split())
    assert of(f"def f(a):\n    # {line}\n    return a\n") == of("def f(a):\n    return a\n")


TARGET = "class C:\n    def f(self):\n        return 1\ndef f():\n    return 1\n"


@pytest.mark.parametrize(
    "more",
    [
        "f, x = other, 1",
        "for f in []: pass",
        "with open('x') as f: pass",
        "try: pass\nexcept E as f: pass",
        "if (f := 1): pass",
        "del f",
        "from x import *",
        "for _ in x:\n    def f(): return 2",
        "def g():\n    global f\n    f = 2",
        "match x:\n    case 1:\n        f = 2",
    ],
)
def test_whatever_binds_it_again_counts(more: str) -> None:
    assert of(TARGET) != of(TARGET + more + "\n")


@pytest.mark.parametrize("more", ["C.f = lambda self: 2", "setattr(C, 'f', g)", "setattr(C, name, g)", "del C.f"])
def test_a_method_set_from_outside_counts(more: str) -> None:
    assert of(TARGET, "C.f") != of(TARGET + more + "\n", "C.f")
    assert of(TARGET, "C.f") == of(TARGET + "D.f = 1\nsetattr(C, 'g', 1)\n", "C.f")


def test_the_decorators_of_its_class_count() -> None:
    assert of(TARGET, "C.f") != of("@change\n" + TARGET, "C.f")


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING", "False", "0"])
def test_what_never_runs_is_not_there(test: str) -> None:
    assert fingerprint.find(f"if {test}:\n    def f(): pass\n".encode(), "f") == []
    assert fingerprint.find(f"if {test}:\n    pass\nelse:\n    def f(): pass\n".encode(), "f")


def test_relative_imports_of_a_package_and_of_a_module() -> None:
    nodes = fingerprint.find(b"from .impl import f\n", "f")
    assert list(fingerprint.imported(nodes, "a.b", is_package=True)) == [("a.b.impl", "f")]
    assert list(fingerprint.imported(nodes, "a.b", is_package=False)) == [("a.impl", "f")]


@pytest.mark.parametrize("source", ["def f(:", "x = " + "-" * 100000 + "1", "x = " + "1+" * 20000 + "1", "\0"])
def test_what_cannot_be_parsed_is_a_syntax_error(source: str) -> None:
    with pytest.raises(SyntaxError):
        fingerprint.of(fingerprint.find(source.encode(), ""))
