"""Finds an attribute in Python source without importing it, and condenses its code into a fingerprint.

A fingerprint changes when the code does; not with comments, docstrings, formatting or the version of Python that reads
it.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator

DIGITS = 12
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BINDINGS = (ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom)
_COMPOUND = (
    ast.If,
    ast.Try,
    ast.With,
    ast.For,
    ast.While,
    ast.Match,
    *((ast.TryStar,) if hasattr(ast, "TryStar") else ()),
)
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def find(source: bytes, attribute: str) -> list[ast.AST]:
    """Everything that binds ``attribute`` (``name`` or ``Class.name``) in a module's source; none where it is missing.

    Several where branches (``if``, ``try``) define it differently, where it is bound again, or where its class is
    decorated. What only type checkers see (``if TYPE_CHECKING``) does not count. Without a name it is the whole module.

    Raises:
        SyntaxError: when the source is no Python that can be read.
    """
    try:
        tree = ast.parse(source)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or type(error).__name__) from error
    found: list[ast.AST] = [tree]
    later: list[ast.AST] = []
    names = [name for name in attribute.split(".") if name]
    for depth, name in enumerate(names):
        owners, found = found, [item for node in found for item in _named(node, name)]
        if depth:
            later += [decorator for owner in owners for decorator in getattr(owner, "decorator_list", ())]
    if not any(isinstance(node, (*_DEFINITIONS, *_BINDINGS, ast.Module)) for node in found):
        return []
    if len(names) > 1:
        later += [statement for statement in _statements(tree.body) if _sets(statement, names)]
    return [*found, *later]


def of(nodes: list[ast.AST]) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of the nodes' code."""
    return hashlib.sha256(repr([_canonical(node) for node in nodes]).encode()).hexdigest()[:DIGITS]


def imported(nodes: list[ast.AST], module: str, is_package: bool) -> Iterator[tuple[str, str]]:
    """Module and name that each ``from ... import`` among the nodes takes, seen from ``module``."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.names[0].name != "*":
            parts = module.split(".")
            up = node.level - 1 if is_package else node.level
            base = parts[: len(parts) - up] if node.level else []
            yield ".".join([*base, *([node.module] if node.module else [])]), node.names[0].name


def text(source: bytes, nodes: list[ast.AST]) -> str:
    """The source text of the nodes, decorators included."""
    lines = re.split(r"\r\n|\r|\n", source.decode("utf-8", "replace"))
    parts = []
    for node in nodes:
        if isinstance(node, ast.Module):
            return "\n".join(lines)
        if not isinstance(node, (ast.stmt, ast.expr)):
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        parts.append("\n".join(lines[first - 1 : node.end_lineno]) + "\n")
    return "".join(parts)


def _named(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """Statements in the body of ``node`` that bind ``name``, or may (``import *``)."""
    for statement in _statements(getattr(node, "body", [])):
        if isinstance(statement, ast.ImportFrom):
            names = [alias for alias in statement.names if (alias.asname or alias.name) in (name, "*")]
            if names:
                yield ast.copy_location(ast.ImportFrom(statement.module, names, statement.level), statement)
        elif isinstance(statement, ast.Import):
            if any((alias.asname or alias.name.split(".")[0]) == name for alias in statement.names):
                yield statement
        elif isinstance(statement, _DEFINITIONS):
            if statement.name == name or _declares_global(statement, name):
                yield statement
        elif name in (_stored_by_head(statement) if isinstance(statement, _COMPOUND) else _stored(statement)):
            yield statement


def _stored(node: ast.AST) -> set[str]:
    """Names that a statement assigns or deletes."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}


def _stored_by_head(statement: ast.stmt) -> set[str]:
    """Names that the head of a compound statement binds: a loop's target, ``with`` and ``except ... as``, a walrus."""
    heads = [value for name, value in ast.iter_fields(statement) if name not in _BODIES]
    parts = [part for head in heads for part in (head if isinstance(head, list) else [head])]
    names = {name for part in parts if isinstance(part, ast.AST) for name in _stored(part)}
    handlers = (getattr(handler, "name", None) for handler in getattr(statement, "handlers", ()))
    return names | {name for name in handlers if name}


def _declares_global(statement: ast.stmt, name: str) -> bool:
    return any(isinstance(part, ast.Global) and name in part.names for part in ast.walk(statement))


def _sets(statement: ast.stmt, names: list[str]) -> bool:
    """Whether a statement of the module sets an attribute of a class from outside: ``Class.name =`` or ``setattr``."""
    if isinstance(statement, (*_DEFINITIONS, *_COMPOUND)):
        return False
    owner, attribute = ".".join(names[:-1]), names[-1]
    for part in ast.walk(statement):
        if isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load):
            told: list[ast.expr] = [part.value, ast.Constant(part.attr)]
        elif isinstance(part, ast.Call) and ast.unparse(part.func) in ("setattr", "delattr"):
            told = part.args[:2]
        else:
            continue
        named = told[1].value if len(told) == 2 and isinstance(told[1], ast.Constant) else attribute
        if told and ast.unparse(told[0]) == owner and named == attribute:
            return True
    return False


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, and those inside its branches and loops, but for what never runs."""
    for statement in body:
        yield statement
        if isinstance(statement, _COMPOUND):
            for part in _BODIES:
                if part == "body" and isinstance(statement, ast.If) and _never(statement.test):
                    continue
                for inner in getattr(statement, part, []):
                    yield from _statements([inner] if isinstance(inner, ast.stmt) else inner.body)


def _never(test: ast.expr) -> bool:
    return (isinstance(test, ast.Constant) and not test.value) or ast.unparse(test).endswith("TYPE_CHECKING")


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
