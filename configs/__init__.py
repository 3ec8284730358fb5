"""Pins, lock files and presets, installed as ``april.configs``."""

from __future__ import annotations

import json
from pathlib import Path

PINS = Path(__file__).with_name("pins.json")


def pins() -> dict[str, dict[str, str]]:
    """What each upstream project is pinned to: name -> ``version``, ``reason`` and, for slime, ``commit``."""
    found: dict[str, dict[str, str]] = json.loads(PINS.read_text(encoding="utf-8"))
    return found
