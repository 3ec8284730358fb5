"""Our form of the roofline: the published one, with what its residuals on measured sweeps show to be missing.

A pass over M = B q rows takes launch + products(M) + attention(B, q, S) + requests(B) + link(M):

- memory and compute overlap in part: a smooth maximum, and the fixed time of launches stands apart from it;
- matrix products work in tiles: rows are rounded up, in part for 16-bit products, fully for 4-bit ones, which also
  read and unpack their weights once for each block of 64 rows;
- a drafter step runs a captured graph, of at least as many rows as there are requests;
- decode attention streams the KV cache; verify attention passes over the context in serial order, in as many tiles as
  fit beside each other; a prefix that all requests share can be read once for all.

Every time grows with B and S, and T_V with gamma. T_D depends on gamma by the padding of its graph alone. Knows no
file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.model import FloatLike, Floats, floats
from specrollout.roofline.parameters import Parameter, parameters
from specrollout.roofline.tiles import (
    ATTENTION_TILE,
    QUANT_BLOCK,
    SHARED_FROM_TOKENS,
    EngineTraits,
    dense_rows,
    graph_rows,
    quantized_rows,
    smooth_max,
)

DENSE_SHARPNESS = 2.3  # how sharply a 16-bit product turns from memory-bound to compute-bound
QUANT_SHARPNESS = 12.0  # a 4-bit product overlaps reading and computing almost fully
WAVE_SHARPNESS = 4.0  # attention tiles beyond those that fit beside each other
TILE_OVERLAP = 0.75  # two tiles on one processor take 1.5 times one


@dataclass(frozen=True)
class PhysicalForm:
    """The form with its parameters; `log_values` are their logarithms in the order of `parameters(tp)`."""

    constants: ModelConstants
    traits: EngineTraits
    log_values: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.log_values) == len(self.table), (len(self.log_values), len(self.table))
        assert self.constants.layers > 0
        assert self.constants.heads > 0

    @property
    def table(self) -> tuple[Parameter, ...]:
        """The parameters, in order."""
        return parameters(self.constants.tp)

    @cached_property
    def values(self) -> dict[str, float]:
        """The parameters by name."""
        return {p.name: float(np.exp(v)) for p, v in zip(self.table, self.log_values, strict=True)}

    def t_target(self, batch: FloatLike, context: FloatLike) -> Floats:
        """T_T in seconds."""
        b, s = floats(batch), floats(context)
        return self._products(b) + self._decode_attention(b, s) + self.values["request_s"] * b + self._link(b)

    def t_verify(self, batch: FloatLike, context: FloatLike, gamma: FloatLike) -> Floats:
        """T_V in seconds."""
        b, s, q = floats(batch), floats(context), floats(gamma) + 1.0
        rows = b * q
        return self._products(rows) + self._verify_attention(b, s, q) + self.values["request_s"] * b + self._link(rows)

    def t_drafter(self, batch: FloatLike, context: FloatLike, gamma: FloatLike) -> Floats:
        """T_D in seconds."""
        b, s, g, v, layers = floats(batch), floats(context), floats(gamma), self.values, self.constants.layers
        rows = graph_rows(b, g, self.traits.graph_padding)
        fixed = layers * (v["drafter_launch_s_per_layer"] + v["drafter_batch_s_per_layer"] * np.clip(b - 1.0, 0.0, 1.0))
        head = self.constants.head_bytes / v["bandwidth_bytes_per_s"]
        requests = v["drafter_request_s"] * b
        return floats(fixed) + head + self._quantized_products(rows) + self._stream(b, s) + requests + self._link(rows)

    def _products(self, rows: Floats) -> Floats:
        """Launches and 16-bit products of the target over `rows` tokens."""
        v, c = self.values, self.constants
        padded = (1.0 - v["tile_share"]) * rows + v["tile_share"] * dense_rows(rows)
        memory = c.read_bytes / v["bandwidth_bytes_per_s"]
        compute = padded * c.dense_flop / v["dense_flop_per_s"]
        return c.layers * v["launch_s_per_layer"] + smooth_max(memory, compute, DENSE_SHARPNESS)

    def _quantized_products(self, rows: Floats) -> Floats:
        """4-bit products of the drafter over `rows` tokens: each block of rows reads and unpacks the weights again."""
        if not self.traits.quantized_tiles:
            return self._quantized_block(np.maximum(rows, 1.0))
        blocks = np.floor(rows / QUANT_BLOCK)
        rest = rows - QUANT_BLOCK * blocks
        whole = blocks * self._quantized_block(np.asarray(float(QUANT_BLOCK)))
        part = self._quantized_block(quantized_rows(np.maximum(rest, 1.0)))
        return floats(whole + np.where(rest > 0, part, 0.0))

    def _quantized_block(self, rows: Floats) -> Floats:
        v, c = self.values, self.constants
        read = c.quantized_bytes / v["bandwidth_bytes_per_s"]
        compute = v["dequantize"] * read + rows * max(0.0, c.dense_flop - c.head_bytes) / v["quantized_flop_per_s"]
        return smooth_max(v["quantized_traffic"] * read, compute, QUANT_SHARPNESS)

    def _stream(self, batch: Floats, context: Floats) -> Floats:
        """Decode attention: KV of the first request from memory, of the others partly from caches."""
        one = self.constants.kv_bytes * context / self.values["bandwidth_bytes_per_s"]
        return np.asarray(one * (1.0 + self.values["kv_reread"] * (batch - 1.0)))

    def _serial(self, context: Floats, tiles: Floats) -> Floats:
        """Attention that passes over the context in order, with `tiles` tiles of query rows."""
        waves = smooth_max(1.0, TILE_OVERLAP * tiles / self.values["attention_tiles"], WAVE_SHARPNESS)
        return np.asarray(self.values["attention_s_per_token"] * self.constants.layers * context * waves)

    def _shared(self, rows: Floats, context: Floats) -> Floats:
        return self._serial(context, self.constants.heads * np.ceil(rows / ATTENTION_TILE))

    def _decode_attention(self, batch: Floats, context: Floats) -> Floats:
        """Engines read a shared prefix once where that is less work; they do not weigh its fixed cost, the merge.

        In short contexts it counts only where it pays as a whole, or a longer context could take less time.
        """
        stream = self._stream(batch, context)
        if not self.traits.shared_prefix:
            return stream
        merge = self.values["share_s_per_layer"] * self.constants.layers
        shared = self._shared(batch, context)
        eager = (stream > self._shared(np.ones_like(batch), context)) & (context > SHARED_FROM_TOKENS)
        return np.where(eager, np.minimum(stream, shared) + merge, np.minimum(stream, shared + merge))

    def _verify_attention(self, batch: Floats, context: Floats, queries: Floats) -> Floats:
        own = self._serial(context, self.constants.heads * batch * np.ceil(queries / ATTENTION_TILE))
        if not self.traits.shared_prefix:
            return own
        merge = self.values["share_s_per_layer"] * self.constants.layers
        return np.minimum(own, self._shared(batch * queries, context) + merge)

    def _link(self, rows: Floats) -> Floats:
        """TP > 1: two all-reduces a layer of 2-byte activations; each device sends 2 (TP - 1) / TP of them."""
        tp = self.constants.tp
        if tp == 1:
            return np.zeros_like(rows)
        sent = 2.0 * (tp - 1) / tp * 2.0 * rows * self.constants.width
        return np.asarray(2.0 * self.constants.layers * sent / self.values["link_bytes_per_s"])
