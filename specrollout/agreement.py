"""One decision on all ranks of a tensor-parallel engine: rank 0's. Draws and clocks differ between ranks."""

from __future__ import annotations

from typing import Any

import torch

from specrollout.settings import LONGEST


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

    def least(self, own: int, able: bool) -> int:
        """Rank 0's draft length, or 0 where a rank is not able to draft; through the host."""
        if self._ranks == 1:
            return own
        leads = self._group.rank_in_group == 0
        shared = torch.tensor([own if leads else (LONGEST if able else 0)], dtype=torch.int64)
        torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MIN, group=self._group.cpu_group)
        return int(shared.item())
