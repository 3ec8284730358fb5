"""The published roofline (arXiv 2606.18967), as its public configurations have it. Knows no file and no sweep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specrollout.roofline.model import FloatLike, Floats, floats

MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class PaperForm:
    """T = max(bytes / bandwidth, FLOP / throughput) + c B + c_comm, for each of the three passes.

    Bytes: W_t + k B S for the target, eta W_d + k B S for the drafter, and W_t + k B S (1 + beta gamma) for verify,
    which also does gamma + 1 times the operations B C_d + B S C_a. The c_* are microseconds per request, c_comm is in
    seconds.
    """

    target_bytes: float
    drafter_bytes: float
    dense_flop: float
    attention_flop: float
    bandwidth_bytes_per_s: float
    throughput_flop_per_s: float
    kv_bytes: float
    drafter_bytes_factor: float
    target_overhead_us: float
    drafter_overhead_us: float
    verify_overhead_us: float
    verify_kv_growth: float = 0.0
    communication_s: float = 0.0

    def _pass(
        self, batch: FloatLike, context: FloatLike, weights: float, overhead_us: float, gamma: FloatLike
    ) -> Floats:
        b, s, g = floats(batch), floats(context), floats(gamma)
        memory = (weights + self.kv_bytes * b * s * (1.0 + self.verify_kv_growth * g)) / self.bandwidth_bytes_per_s
        compute = (g + 1.0) * (b * self.dense_flop + b * s * self.attention_flop) / self.throughput_flop_per_s
        return floats(np.maximum(memory, compute)) + overhead_us * b * MICRO + self.communication_s

    def t_target(self, batch: FloatLike, context: FloatLike) -> Floats:
        """T_T in seconds."""
        return self._pass(batch, context, self.target_bytes, self.target_overhead_us, 0.0)

    def t_drafter(self, batch: FloatLike, context: FloatLike, gamma: FloatLike) -> Floats:
        """T_D in seconds; the draft length only gives the result its shape."""
        weights = self.drafter_bytes_factor * self.drafter_bytes
        return self._pass(batch, context, weights, self.drafter_overhead_us, 0.0 * floats(gamma))

    def t_verify(self, batch: FloatLike, context: FloatLike, gamma: FloatLike) -> Floats:
        """T_V in seconds."""
        return self._pass(batch, context, self.target_bytes, self.verify_overhead_us, gamma)
