"""Whether a model folder holds the model that a preset describes: its config.json against the preset's architecture."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from april.errors import UsageError

IGNORED = frozenset({"max_position_embeddings", "rope_scaling", "rope_theta"})
"""Not part of the weights' shape, or compared otherwise."""
RELATIVE = 1e-5
"""Numbers that went through 32 bits on their way are the same numbers."""


def check(folder: Path, architecture: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """The architecture with the folder's own numbers, where they are the preset's but for rounding.

    Raises:
        UsageError: when config.json is no JSON or describes another model: what differs, and what to do.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--hf-checkpoint {folder}: no config.json in it ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"--hf-checkpoint {folder}: config.json is no JSON ({error})") from error
    if not isinstance(config, dict):
        raise UsageError(f"--hf-checkpoint {folder}: config.json holds no object")
    found = _numbers(config, architecture)
    differing = [
        f"{name} {found[name]} instead of {wanted}"
        for name, wanted in architecture.items()
        if name in found and not _same(found[name], wanted)
    ]
    if differing:
        raise UsageError(
            f"--hf-checkpoint {folder} is no {preset}: {', '.join(differing)}; give its folder by --models or "
            "--set hf-checkpoint=DIR, or the preset of this model"
        )
    return {**architecture, **{name: value for name, value in found.items() if name in architecture}}


def _numbers(config: Mapping[str, Any], architecture: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says of the preset's fields, wherever a version of transformers puts it."""
    rope = config.get("rope_parameters") or {}
    found = {name: config[name] for name in architecture if name not in IGNORED and config.get(name) is not None}
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if theta is not None and "rope_theta" in architecture:
        found["rope_theta"] = theta
    return found


def _same(found: Any, wanted: Any) -> bool:
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (found, wanted))
    return math.isclose(found, wanted, rel_tol=RELATIVE) if numbers else bool(found == wanted)
