"""The trace of a benchmark: how long each response is. A function of a distribution, a scale and a seed.

Response ``i`` of a run is the same in every mode: the host numbers its samples in the order of the prompts.
"""

from __future__ import annotations

import bisect
import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path

from april.errors import UsageError

DEFAULT = "ServeGen deepseek-r1 quantiles"
# Quantiles of the response lengths of a reasoning model in production: alibaba/ServeGen at f891d11,
# data/reason/deepseek-r1 (Apache-2.0), pooled over clients by request rate.
QUANTILES: tuple[tuple[float, int], ...] = (
    *((0.0, 9), (0.03125, 195), (0.0625, 246), (0.125, 325), (0.1875, 395), (0.25, 464), (0.3125, 545)),
    *((0.375, 660), (0.4375, 822), (0.5, 1014), (0.5625, 1223), (0.625, 1461), (0.6875, 1816), (0.75, 2563)),
    *((0.8125, 3477), (0.875, 4699), (0.90625, 5638), (0.9375, 7045), (0.95, 7858), (0.97, 9992), (0.98, 11882)),
    *((0.99, 15063), (0.995, 17829), (0.998, 20517), (0.999, 22343), (0.9999, 28371), (1.0, 32768)),
)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Lengths in tokens, rising, and the probability that a response is at most that long (the last is 1)."""

    name: str
    lengths: tuple[int, ...]
    cumulative: tuple[float, ...]

    def quantile(self, share: float) -> int:
        """The least length that at least ``share`` (0 to 1) of the responses do not exceed."""
        return self.lengths[min(bisect.bisect_left(self.cumulative, share), len(self.lengths) - 1)]

    def draw(self, count: int, max_len: int, seed: int) -> list[int]:
        """``count`` lengths, independent, at least 1; the longest possible one is scaled to ``max_len``."""
        source = random.Random(seed)
        scale = max_len / self.lengths[-1]
        return [max(1, round(scale * self.quantile(source.random()))) for _ in range(count)]


def distribution(path: str | None) -> Distribution:
    """The distribution of a file, or the one that comes with us.

    Raises:
        UsageError: for a file that holds none.
    """
    if path is None:
        return _interpolated()
    try:
        body = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"--lengths {path}: {getattr(error, 'strerror', None) or error}") from error
    pmf = body.get("pmf", body) if isinstance(body, dict) else None
    try:
        pairs = sorted((int(length), float(share)) for length, share in (pmf or {}).items())
    except (AttributeError, TypeError, ValueError):
        pairs = []
    return of_pairs(Path(path).name, [(length, share) for length, share in pairs if share != 0])


def of_pairs(name: str, pairs: list[tuple[int, float]]) -> Distribution:
    """From lengths, rising, with their weights, which need not add up to 1.

    Raises:
        UsageError: without any, or for a length below 1 or a weight that is none.
    """
    if not pairs or pairs[0][0] < 1 or any(not 0 < share < float("inf") for _, share in pairs):
        raise UsageError(
            f'--lengths {name}: it must map tokens to probabilities: {{"pmf": {{"120": 0.5, "4000": 0.5}}}}'
        )
    sums = list(itertools.accumulate(share for _, share in pairs))
    return Distribution(name, tuple(length for length, _ in pairs), tuple(part / sums[-1] for part in sums))


def _interpolated() -> Distribution:
    """Between two quantiles lengths grow geometrically."""
    lengths, shares = [], []
    for (low, shortest), (high, longest) in itertools.pairwise(QUANTILES):
        for step in range(1, 33):
            lengths.append(round(shortest * (longest / shortest) ** (step / 32)))
            shares.append(low + (high - low) * step / 32)
    return Distribution(DEFAULT, tuple(lengths), tuple(shares))


def prompts(count: int, seed: int) -> list[str]:
    """``count`` short prompts ("17+5?"): as short against the responses as prompts are before scaling."""
    source = random.Random(f"prompts {seed}")
    return [f"{source.randrange(10, 100)}+{source.randrange(10, 100)}?" for _ in range(count)]
