"""Parses the flags of a run with the host's own parser, and refuses what it would silently ignore."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from april.config import add_arguments, from_args
from april.correction.host import arm
from april.errors import UsageError
from april.hosts import Host


def parse(host: Host, argv: list[str], asynchronous: bool = False) -> Namespace:
    """The host's namespace with our flags in it; ``asynchronous`` tells of the loop that will run.

    The hosts parse in several passes, each ignoring what another may know, so that a misspelt flag is lost in all of
    them; here a flag that no pass knows is an error.

    Raises:
        UsageError: for an unknown flag (with the nearest known one) or a bad value.
    """

    with _registered_flags() as known:

        def refuse(parser: ArgumentParser, message: str) -> NoReturn:
            unknown = _unknown(argv, known) if message.startswith("unrecognized arguments") else []
            raise UsageError("; ".join(unknown) or message)

        with _errors(refuse):
            try:
                args = host.parse_args(add_arguments)
            except (AssertionError, ValueError) as error:
                raise UsageError(_said(error)) from error
    if unknown := _unknown(argv, known):
        raise UsageError("; ".join(unknown))
    args.april_async = asynchronous
    from_args(args)
    arm(args)
    return args


@contextlib.contextmanager
def _errors(refuse: Callable[[ArgumentParser, str], NoReturn]) -> Iterator[None]:
    """Inside the context every parser of the hosts gives its errors to ``refuse``, instead of printing and exiting."""
    original = ArgumentParser.error
    ArgumentParser.error = refuse  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ArgumentParser.error = original  # type: ignore[method-assign]


def _said(error: Exception) -> str:
    """What a host's own check says, and where it stands when it says nothing."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split()) or f"{frame.line}"
    return f"the host refuses the flags: {text} ({Path(frame.filename).name}:{frame.lineno})"


@contextlib.contextmanager
def _registered_flags() -> Iterator[set[str]]:
    """Collects the flags of every parser that is built inside the context."""
    container: Any = argparse._ActionsContainer
    original = container._add_action
    known: set[str] = set()

    def add_action(self: Any, action: argparse.Action) -> argparse.Action:
        known.update(action.option_strings)
        return original(self, action)  # type: ignore[no-any-return]

    container._add_action = add_action
    try:
        yield known
    finally:
        container._add_action = original


def _unknown(argv: list[str], known: set[str]) -> list[str]:
    """A line for each flag of ``argv`` that is not ``known``."""
    lines = []
    for token in argv:
        flag = token.split("=", 1)[0]
        if flag.startswith("--") and flag not in known:
            near = difflib.get_close_matches(flag, sorted(known), n=1)
            lines.append(f"unknown flag {flag}" + (f" (did you mean {near[0]}?)" if near else ""))
    return lines
