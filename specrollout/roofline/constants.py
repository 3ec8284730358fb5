"""What is known of a model before anything is measured: bytes and operations, per device (already divided by TP)."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from april.errors import UsageError

# The published names, and the shortest explanation that an error message can give.
REQUIRED = {
    "W_t": "bytes of the target's weights",
    "W_d": "bytes of the drafter's weights",
    "C_dense": "FLOP per token outside attention",
    "C_attn": "FLOP per token and token of context",
    "kappa_theoretical": "bytes of KV cache per token",
}


@dataclass(frozen=True, slots=True)
class ModelConstants:
    """Bytes and operations of a target and its quantized drafter on one device.

    `layers`, `heads`, `width` and `head_bytes` (the 16-bit output projection, which is not quantized) may be unknown,
    0: the paper form needs none of them.
    """

    name: str
    tp: int
    target_bytes: float
    drafter_bytes: float
    dense_flop: float
    attention_flop: float
    kv_bytes: float
    layers: int = 0
    heads: int = 0
    width: int = 0
    head_bytes: float = 0.0

    @property
    def unread_bytes(self) -> float:
        """Bytes of 16-bit weights that a step does not read: the embedding table, of which it takes a row per token.

        2 bytes and 2 FLOP belong to each weight that a token passes, so `dense_flop` is also the bytes that are read.
        """
        return max(0.0, self.target_bytes - self.dense_flop)

    @property
    def read_bytes(self) -> float:
        """Bytes of target weights that each step reads."""
        return self.target_bytes - self.unread_bytes

    @property
    def quantized_bytes(self) -> float:
        """Bytes of the drafter's quantized weights: all but the embedding and the output projection."""
        return max(0.05 * self.drafter_bytes, self.drafter_bytes - self.unread_bytes - self.head_bytes)

    def published(self) -> dict[str, Any]:
        """By the published names, as `read_constants` takes them."""
        return {
            "model": self.name,
            "tp": self.tp,
            "W_t": self.target_bytes,
            "W_d": self.drafter_bytes,
            "C_dense": self.dense_flop,
            "C_attn": self.attention_flop,
            "kappa_theoretical": self.kv_bytes,
            "L": self.layers,
            "n_heads": self.heads * self.tp,
            "D": self.width,
            "V": round(self.head_bytes * self.tp / (2.0 * self.width)) if self.width else 0,
        }

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object in a JSON file; one line that names the file when there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{what} {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{what} {path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{what} {path} holds a {type(found).__name__}; an object is expected")
    return found


def read_constants(path: Path) -> ModelConstants:
    """Constants from a file in the published format."""
    return constants_from(read_json(path, "constants"), f"constants {path}")


def constants_from(found: dict[str, Any], where: str) -> ModelConstants:
    """Constants by their published names; per device, so that nothing is divided by TP here."""
    missing = [f"{name} ({what})" for name, what in REQUIRED.items() if name not in found]
    if missing:
        raise UsageError(f"{where}: no {', '.join(missing)}")
    values = {name: _positive(found[name], name, where) for name in REQUIRED}
    whole = {name: int(_positive(found.get(name, 0) or 1, name, where)) if name in found else 0 for name in _SHAPE}
    tp = int(_positive(found.get("tp", 1), "tp", where))
    return ModelConstants(
        name=str(found.get("model") or found.get("name") or ""),
        tp=tp,
        target_bytes=values["W_t"],
        drafter_bytes=values["W_d"],
        dense_flop=values["C_dense"],
        attention_flop=values["C_attn"],
        kv_bytes=values["kappa_theoretical"],
        layers=whole["L"],
        heads=max(1, whole["n_heads"] // tp) if whole["n_heads"] else 0,
        width=whole["D"],
        head_bytes=2.0 * whole["V"] * whole["D"] / tp,
    )


_SHAPE = ("L", "n_heads", "D", "V")


def _positive(value: Any, name: str, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{where}: {name} is {value!r}; a positive number is expected") from None
    if not (math.isfinite(number) and number > 0):
        raise UsageError(f"{where}: {name} is {value!r}; a positive number is expected")
    return number
