"""One decision on all ranks of a tensor-parallel engine: rank 0's. Draws and clocks differ between ranks."""

from __future__ import annotations

from typing import Any

import torch


class Agreement:
    """``group``: SGLang's coordinator of the tensor-parallel ranks; with one rank nothing is sent."""

    def __init__(self, group: Any, ranks: int) -> None:
        self._group = group
        self._ranks = ranks

    def tensor(self, own: torch.Tensor) -> torch.Tensor:
        """Rank 0's values; shapes agree."""
        if self._ranks == 1:
            return own
        shared = own.contiguous()
        self._group.broadcast(shared, src=0)
        return shared

    def number(self, own: int) -> int:
        """Rank 0's number, through the host."""
        if self._ranks == 1:
            return own
        shared = torch.tensor([own], dtype=torch.int64)
        torch.distributed.broadcast(shared, src=self._group.ranks[0], group=self._group.cpu_group)
        return int(shared.item())
