"""What an engine's speculation did: counts, seconds, acceptance by position, and an alarm when it is worth nothing.

Names follow the field: gamma drafted tokens a cycle, tau tokens that a cycle adds to a request (1 to gamma + 1), alpha
the share of drafted tokens that were accepted. Pure logic.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ALARM_TAU = 1.05
ALARM_CYCLES = 200


@dataclass(slots=True)
class Stats:
    """Sums since the engine started. ``cycles`` and ``ar_steps`` count steps of the engine; ``request_cycles`` counts
    each request of each cycle."""

    ar_steps: int = 0
    ar_tokens: int = 0
    cycles: int = 0
    request_cycles: int = 0
    drafted: int = 0
    accepted: int = 0
    ar_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    switches: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    reached: Counter[int] = field(default_factory=Counter)
    passed: Counter[int] = field(default_factory=Counter)
    _recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=ALARM_CYCLES))

    def plain(self, batch: int, seconds: float) -> None:
        """An AR step of so many requests."""
        self.ar_steps += 1
        self.ar_tokens += batch
        self.ar_s += seconds

    def cycle(self, gamma: int, accepted: Sequence[int], draft_s: float, verify_s: float) -> None:
        """A cycle: accepted drafts of each request, without the bonus token."""
        self.cycles += 1
        self.request_cycles += len(accepted)
        self.drafted += gamma * len(accepted)
        self.accepted += sum(accepted)
        self.draft_s += draft_s
        self.verify_s += verify_s
        for count in accepted:
            for position in range(min(count + 1, gamma)):
                self.reached[position] += 1
            for position in range(count):
                self.passed[position] += 1
        self._recent.append((len(accepted), sum(accepted)))

    @property
    def tau(self) -> float | None:
        """Tokens that a cycle added to a request; None without a cycle."""
        return 1 + self.accepted / self.request_cycles if self.request_cycles else None

    @property
    def alpha(self) -> float | None:
        """Accepted share of the drafted tokens; None without a draft."""
        return self.accepted / self.drafted if self.drafted else None

    def alarm(self) -> str | None:
        """Why the drafter must be looked at: almost nothing is accepted any more. None where all is well."""
        requests, accepted = (sum(column) for column in zip(*self._recent, strict=True)) if self._recent else (0, 0)
        if len(self._recent) < ALARM_CYCLES or 1 + accepted / requests >= ALARM_TAU:
            return None
        return (
            f"tau is {1 + accepted / requests:.3f} over the last {ALARM_CYCLES} cycles: the drafter proposes nothing "
            "that the policy takes; is it stale (refreshes), and how its layers are quantized (april drafter)"
        )

    def report(self) -> dict[str, Any]:
        """All of it, as JSON."""
        by_position = [round(self.passed[i] / self.reached[i], 4) for i in sorted(self.reached)]
        return {
            "ar_steps": self.ar_steps,
            "ar_tokens": self.ar_tokens,
            "cycles": self.cycles,
            "request_cycles": self.request_cycles,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "tau": self.tau,
            "alpha": self.alpha,
            "alpha_by_position": by_position,
            "ar_s": self.ar_s,
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
            "switches": self.switches,
            "fallbacks": dict(self.fallbacks),
            "alarm": self.alarm(),
        }
