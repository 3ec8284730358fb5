"""Quoting of values in the files that a job is rendered to."""

from __future__ import annotations

import shlex


def sh(value: str) -> str:
    """One word of bash, on one line: control characters are written as escapes."""
    if value.isprintable():
        return shlex.quote(value)
    return "$'" + "".join(_escaped(character) for character in value) + "'"


def words(values: tuple[str, ...] | list[str]) -> str:
    """Several words of bash."""
    return " ".join(sh(value) for value in values)


def _escaped(character: str) -> str:
    if character in "'\\":
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def yaml(value: object) -> str:
    """A double-quoted scalar of YAML."""
    return '"' + "".join(_yaml_escaped(character) for character in str(value)) + '"'


def _yaml_escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    return f"\\U{ord(character):08x}"


def variable(value: str) -> str:
    """The value of a container's variable in Kubernetes, which expands ``$(NAME)`` and turns ``$$`` into ``$``."""
    return yaml(value.replace("$", "$$"))
