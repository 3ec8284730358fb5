"""The one error that the set-up shows to a user."""

from __future__ import annotations


class SetupError(Exception):
    """Set-up cannot go on. The message is one line: what is missing, where, and what would be right."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
