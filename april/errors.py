"""Errors that a user can act on: one line each, with the exit code of the command that meets them."""

from __future__ import annotations


class AprilError(Exception):
    """A run failed. The message is one line: what is wrong, where, and what would be right."""

    exit_code = 1


class UsageError(AprilError):
    """The command, a flag or an input file is wrong; nothing was started."""

    exit_code = 2
