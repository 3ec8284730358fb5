"""The parser of our own commands: a mistake is one line, as every other error of ours."""

from __future__ import annotations

import argparse
from typing import NoReturn

from april.errors import UsageError


class UsageParser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """See the class."""
        raise UsageError(f"{message}; {self.prog} --help lists the flags")
