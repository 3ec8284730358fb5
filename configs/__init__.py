"""Pins, lock files and presets, installed as ``april.configs``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PINS = Path(__file__).with_name("pins.json")


def pins() -> dict[str, dict[str, str]]:
    """What each upstream project is pinned to: name -> ``version``, ``reason`` and, for slime, ``commit``."""
    found: dict[str, dict[str, str]] = json.loads(PINS.read_text(encoding="utf-8"))
    return found


def support() -> dict[str, list[dict[str, Any]]]:
    """The versions of each package that are checked: ``version``, the expected verdict of each feature, and a note."""
    found: dict[str, list[dict[str, Any]]] = json.loads(PINS.with_name("support.json").read_text(encoding="utf-8"))
    return found
