"""Finds an attribute in Python source without importing it, and condenses its code into a fingerprint.

A fingerprint changes when the code does; not with comments, docstrings, formatting or the version of Python that reads
it.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator

DIGITS = 12
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def find(source: bytes, attribute: str) -> list[ast.AST]:
    """Every definition of ``attribute`` (``name`` or ``Class.name``) in a module's source; none where it is missing.

    Several where branches (``if``, ``try``) define it differently. An empty attribute is the whole module.

    Raises:
        SyntaxError, ValueError: when the source is no Python.
    """
    tree = ast.parse(source)
    found: list[ast.AST] = [tree]
    for name in filter(None, attribute.split(".")):
        found = [item for node in found for item in _named(node, name)]
    return found


def of(nodes: list[ast.AST]) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of the nodes' code."""
    return hashlib.sha256(repr([_canonical(node) for node in nodes]).encode()).hexdigest()[:DIGITS]


def imported(nodes: list[ast.AST], module: str) -> Iterator[tuple[str, str]]:
    """Module and name that each ``from ... import`` among the nodes takes, seen from ``module``."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            yield home, node.names[0].name


def text(source: bytes, nodes: list[ast.AST]) -> str:
    """The source text of the nodes, decorators included."""
    lines = source.decode("utf-8", "replace").splitlines()
    parts = []
    for node in nodes:
        if not isinstance(node, ast.stmt):
            return "\n".join(lines) + "\n"
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        parts.append("\n".join(lines[first - 1 : node.end_lineno]) + "\n")
    return "".join(parts)


def _named(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """Statements in the body of ``node`` that bind ``name``."""
    for statement in _statements(getattr(node, "body", [])):
        if isinstance(statement, _DEFINITIONS):
            bound = [statement.name]
        elif isinstance(statement, ast.Assign):
            bound = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        elif isinstance(statement, ast.AnnAssign):
            bound = [statement.target.id] if isinstance(statement.target, ast.Name) else []
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            bound = [(alias.asname or alias.name).split(".")[0] for alias in statement.names]
        else:
            continue
        if name in bound:
            yield _only(statement, name)


def _only(statement: ast.stmt, name: str) -> ast.stmt:
    """Of an import of several names the one that is asked for."""
    if isinstance(statement, ast.ImportFrom):
        names = [alias for alias in statement.names if (alias.asname or alias.name) == name]
        return ast.copy_location(ast.ImportFrom(statement.module, names, statement.level), statement)
    return statement


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, and those inside its branches."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from _statements(handler.body)


def _canonical(node: object) -> object:
    """A syntax tree as nested tuples, without docstrings and without what is empty.

    Python versions differ in the empty fields that they have.
    """
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(node, (*_DEFINITIONS, ast.Module)):
                value = _without_docstring(value)
            canonical = _canonical(value)
            if canonical not in (None, ()) and name != "type_comment":
                fields.append((name, canonical))
        return (type(node).__name__, *fields)
    return tuple(map(_canonical, node)) if isinstance(node, list) else node


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if is_docstring else body
