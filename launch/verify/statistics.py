"""Whether counts follow a distribution: Pearson's chi-square, and Holm's bound for many tests at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

SMALLEST = 5.0
"""Expected counts below it are taken together: the chi-square approximation needs them larger."""
LEVEL = 1e-3
"""How likely a right sampler may fail all tests together."""


def chi_square(counts: Sequence[float], expected: Sequence[float]) -> float:
    """The p-value of ``counts`` under the probabilities ``expected``; 0 where something impossible was counted."""
    seen = torch.tensor(counts, dtype=torch.float64)
    wanted = torch.tensor(expected, dtype=torch.float64)
    if seen[wanted == 0].any():
        return 0.0
    wanted = wanted / wanted.sum() * seen.sum()
    order = wanted.argsort()
    seen, wanted = seen[order], wanted[order]
    # The rarest are taken together until the group is large enough.
    rare = int(torch.searchsorted(wanted, SMALLEST))
    while rare and rare < len(wanted) and wanted[:rare].sum() < SMALLEST:
        rare += 1
    if rare:
        seen, wanted = (torch.cat([column[:rare].sum().view(1), column[rare:]]) for column in (seen, wanted))
    possible = wanted > 0
    seen, wanted = seen[possible], wanted[possible]
    if len(wanted) < 2:
        return 1.0
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    freedom = torch.tensor(len(wanted) - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def rejected(p_values: Mapping[str, float], level: float = LEVEL) -> list[str]:
    """The tests that fail when the chance of any false alarm may be ``level`` (Holm 1979)."""
    failed: list[str] = []
    for name, p_value in sorted(p_values.items(), key=lambda item: item[1]):
        if p_value * (len(p_values) - len(failed)) > level:
            break
        failed.append(name)
    return failed
