"""How many groups to take at once (``--april-over-sampling auto``).

Symbols: T groups end a round, n responses each, G groups in flight, L the length of a response in tokens (measured),
P the mean prompt, C the tokens of KV cache of all engines, cap the staleness cap in policy versions.

* KV: G groups with responses half done on average hold G n (P + E[L] / 2) tokens, which must fit into C:
  G <= C / (n (P + E[L] / 2)).
* Staleness: a round trains T n E[L] tokens, so each of the G n places generates T E[L] / G a round, and a response of
  length L needs L G / (T E[L]) rounds. The 99th percentile must end within the cap: G <= cap T E[L] / L99.
* Use: beyond 3 T more groups only wait longer; below T a round cannot end.

Within these bounds the largest G keeps the engines fullest. Until ``LEAST`` lengths were measured it is 2 T.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

LEAST = 32
KEPT = 4096
FIRST, MOST = 2, 3


class LengthSample:
    """The lengths of the last responses that ended, in tokens, prompts beside them."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=KEPT)
        self._prompts: deque[int] = deque(maxlen=KEPT)

    def observe(self, lengths: Iterable[int], prompts: Iterable[int]) -> None:
        """Add responses that ended, with the lengths of their prompts."""
        self._lengths.extend(lengths)
        self._prompts.extend(prompts)

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def mean(self) -> float:
        """E[L]."""
        return sum(self._lengths) / len(self._lengths)

    @property
    def mean_prompt(self) -> float:
        """P."""
        return sum(self._prompts) / len(self._prompts)

    def percentile(self, share: float) -> int:
        """The length that ``share`` of responses do not exceed."""
        return sorted(self._lengths)[min(len(self._lengths) - 1, int(share * len(self._lengths)))]

    def to_dict(self) -> dict[str, list[int]]:
        """For a checkpoint, as JSON."""
        return {"lengths": list(self._lengths), "prompts": list(self._prompts)}

    @classmethod
    def restore(cls, data: dict[str, list[int]]) -> LengthSample:
        """From :meth:`to_dict`."""
        made = cls()
        made.observe(data["lengths"], data["prompts"])
        return made


def groups_at_once(seen: LengthSample, target: int, group_size: int, capacity: int | None, cap: int) -> int:
    """G for the next round; ``capacity`` is C, None where no engine told it."""
    if len(seen) < LEAST:
        return FIRST * target
    bounds = [MOST * target, int(cap * target * seen.mean / max(1, seen.percentile(0.99)))]
    if capacity is not None:
        bounds.append(int(capacity / (group_size * (seen.mean_prompt + seen.mean / 2))))
    return max(target, min(bounds))
