"""Flags as a mapping: name without dashes -> value, as presets hold them, and as words of a command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from april.errors import UsageError
from april.launch.presets.files import Flag

ENVIRONMENT = "env."
"""What a key of ``--set`` begins with when it names a variable of the environment."""


def words(flags: Mapping[str, Flag]) -> list[str]:
    """The words of a command: True is a switch, False and None are left out, a list is several values."""
    found: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        found += [f"--{name}", *map(str, values)]
    return found


def parse(given: Sequence[str]) -> dict[str, Flag]:
    """The mapping of a command's words; of a flag that is given twice the last counts.

    Raises:
        UsageError: for a value that follows no flag.
    """
    found: dict[str, Flag] = {}
    name = None
    values: list[str] = []
    for word in given:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
        elif name is None:
            raise UsageError(f"{word!r} after -- belongs to no flag; give --FLAG VALUE")
        else:
            values = [*values, word]
        found[name] = True if not values else values[0] if len(values) == 1 else list(values)
    return found


def settings(given: Iterable[str]) -> tuple[dict[str, Flag], dict[str, str | None]]:
    """The flags and the environment of ``--set KEY=VALUE``; values are YAML: true, null, [a, b] mean what they say.

    Raises:
        UsageError: for one without ``=``, or a value that is a mapping.
    """
    import yaml

    flags: dict[str, Flag] = {}
    environment: dict[str, str | None] = {}
    for text in given:
        name, equals, written = text.partition("=")
        if not equals or not name.lstrip("-"):
            raise UsageError(f"--set {text}: give KEY=VALUE, for example --set lr=2e-6")
        if name.startswith(ENVIRONMENT):
            environment[name.removeprefix(ENVIRONMENT)] = None if written == "null" else written
            continue
        try:
            value = yaml.safe_load(written)
        except yaml.YAMLError:
            value = written
        # A mapping is the text of a flag that takes JSON.
        flags[name.lstrip("-")] = written if isinstance(value, dict) else value
    return flags, environment
