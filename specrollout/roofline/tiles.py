"""How an engine and its kernels round work up: rows of a captured graph, tiles of a matrix product, tiles of attention.

All functions accept arrays, never decrease, and never return less than they are given.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from specrollout.roofline.model import Floats

GraphPadding = Literal["query", "sizes", "none"]
GRAPH_PADDINGS: tuple[GraphPadding, ...] = ("query", "sizes", "none")
ATTENTION_TILE = 64  # query rows of one attention tile
DENSE_TILE = 128  # rows of one tile of a 16-bit matrix product; smaller powers of two below it
QUANT_TILE = 16  # rows of one tile of a 4-bit product; half of it for 8 rows and fewer
QUANT_BLOCK = 64  # rows for which a 4-bit product reads its weights once
SHARED_FROM_TOKENS = 256  # engines look for a shared prefix in contexts longer than this


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What an engine does that no constant of the model tells; `fit` finds it out from the sweep.

    graph_padding: rows of a drafter step are those of a captured graph (1, 2, 4, then multiples of 8), rounded up to a
    multiple of gamma + 1 where the engine captures graphs for verify ("query"), or not ("sizes"); "none": no padding.
    shared_prefix: requests of the sweep share their prompt, and the engine may read a shared prefix once for all of
    them. quantized_tiles: the drafter's products work in tiles of 16 rows and blocks of 64 (Marlin and its kin).
    """

    graph_padding: GraphPadding = "query"
    shared_prefix: bool = True
    quantized_tiles: bool = True

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def graph_rows(batch: Floats, gamma: Floats, padding: GraphPadding) -> Floats:
    """Rows that the drafter's graph computes for `batch` requests."""
    if padding == "none":
        return batch + 0.0 * gamma
    captured = np.where(
        batch <= 1, 1.0, np.where(batch <= 2, 2.0, np.where(batch <= 4, 4.0, 8.0 * np.ceil(batch / 8.0)))
    )
    if padding == "sizes":
        return np.asarray(captured + 0.0 * gamma)
    return np.asarray((gamma + 1.0) * np.ceil(captured / (gamma + 1.0)))


def dense_rows(rows: Floats) -> Floats:
    """Rows that a 16-bit matrix product computes: the next power of two, from 128 on the next multiple of 128."""
    rows = np.maximum(rows, 1.0)
    return np.asarray(
        np.where(rows <= DENSE_TILE, 2.0 ** np.ceil(np.log2(rows)), DENSE_TILE * np.ceil(rows / DENSE_TILE))
    )


def quantized_rows(rows: Floats) -> Floats:
    """Rows that a 4-bit matrix product computes, at most one block at a time."""
    return np.asarray(np.where(rows <= QUANT_TILE / 2, QUANT_TILE / 2, QUANT_TILE * np.ceil(rows / QUANT_TILE)))


def smooth_max(left: Any, right: Any, sharpness: float) -> Floats:
    """(left^p + right^p)^(1/p) of positive numbers: the maximum for p = infinity, the sum for p = 1."""
    top = np.maximum(left, right)
    return np.asarray(top * ((left / top) ** sharpness + (right / top) ** sharpness) ** (1.0 / sharpness))
