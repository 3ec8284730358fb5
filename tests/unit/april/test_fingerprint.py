"""A fingerprint follows the code of a file, not its comments, its formatting or the Python that reads it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from april.errors import UsageError
from april.hosts.resolve import _canonical, fingerprint


def of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "m.py"
    path.write_text(text)
    return fingerprint(path)


def test_comments_and_formatting_do_not_count(tmp_path: Path) -> None:
    assert of(tmp_path, "def f(a):\n    return a+1\n") == of(tmp_path, "# why\ndef f(a):\n\n    return (a + 1)  # so\n")


def test_code_counts(tmp_path: Path) -> None:
    assert of(tmp_path, "def f(a):\n    return a+1\n") != of(tmp_path, "def f(a):\n    return a+2\n")


def test_empty_fields_that_newer_pythons_add_do_not_count() -> None:
    old, new = ast.parse("def f(): pass"), ast.parse("def f(): pass")
    function = new.body[0]
    function.type_params = []  # type: ignore[attr-defined]
    function._fields = (*ast.FunctionDef._fields, "type_params")  # type: ignore[misc]
    assert _canonical(old) == _canonical(new)


@pytest.mark.parametrize("content", [b"def f(:", b"\xff\xfe\x00"])
def test_what_is_no_python_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.py").write_bytes(content)
    with pytest.raises(UsageError, match=r"m\.py cannot be read as Python"):
        fingerprint(tmp_path / "m.py")
