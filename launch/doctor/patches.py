"""Checks of the run-time patches."""

from __future__ import annotations

from .check import Check
from .facts import Facts


def checks(facts: Facts) -> list[Check]:
    """The checks of this module."""
    return []
