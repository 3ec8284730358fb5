"""Policy versions, lag, and the cap: a trained token is never more than ``cap`` versions old.

Symbols: ``v`` the policy version of a round, ``w`` that of a token; lag = v - w. A group's lag is that of its oldest
token.

At the cap
    finish   A group with lag = cap may be trained in this round for the last time: it is scheduled first, and the
             round does not end (and aborts nothing) before it has finished. At most ``target`` groups can be
             must-finish, since no more can be trained; what goes beyond the cap all the same starts again.
    restart  Beyond the cap (lag > cap) the response is cleared and the prompt starts again. At lag = cap the group may
             still finish and be trained, so nothing is thrown away before it has to be.
    mask     Nothing is thrown away; when the group is trained, its tokens beyond the cap get loss mask 0.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from april.core import Group, Leg


class AtCap(enum.Enum):
    """What happens to a group at the cap."""

    FINISH = "finish"
    RESTART = "restart"
    MASK = "mask"


class Action(enum.Enum):
    """What admission does with a group."""

    RUN = "run"
    MUST_FINISH = "must_finish"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class StalenessPolicy:
    """The cap (in policy versions) and what happens there."""

    cap: int = 5
    at_cap: AtCap = AtCap.FINISH

    def action(self, group: Group, policy_version: int) -> Action:
        """What to do with a group that would be trained at ``policy_version`` or later."""
        lag = group.lag(policy_version)
        if self.at_cap is AtCap.MASK:
            return Action.RUN
        if lag > self.cap:
            return Action.RESTART
        # A new prompt has no token to be late: with cap 0 it ends its round like any other.
        if self.at_cap is AtCap.FINISH and lag == self.cap and not group.fresh:
            return Action.MUST_FINISH
        return Action.RUN


def capped_mask(mask: Sequence[int] | None, legs: Iterable[Leg], policy_version: int, cap: int) -> list[int]:
    """The loss mask with tokens beyond the cap at 0. It only ever takes weight away: what was 0 stays 0.

    ``legs`` tile the response; ``mask`` has its length, or is None for all ones.
    """
    keep = [int(policy_version - leg.policy_version <= cap) for leg in legs for _ in range(leg.length)]
    if mask is None:
        return keep
    return [int(old) if new else 0 for old, new in zip(mask, keep, strict=True)]


def parse_version(raw: object) -> int | None:
    """An engine's ``weight_version`` as a number; ``default``, what an engine says before the first update, is 0.

    None where it cannot be ordered (not a number).
    """
    text = str(raw)
    if text == "default":
        return 0
    return int(text) if text.isdigit() else None


@dataclass(slots=True)
class VersionClock:
    """Policy versions that never go back, over engines whose own count starts again with each run.

    ``offset`` is added to what an engine reports; ``last`` is the newest version seen. After a restore the first
    version seen is newer than any before: the checkpoint's weights are those after the last round's update.
    """

    offset: int = 0
    last: int = 0
    restored: bool = False

    def observe(self, raw: int | None) -> int:
        """The policy version at the start of a round, of engines that report ``raw`` (None: nobody answered)."""
        if raw is None:
            return self.last
        version = raw + self.offset
        if version < self.last or (self.restored and version <= self.last):
            self.offset = self.last + 1 - raw
            version = self.last + 1
        self.restored = False
        self.last = version
        return version

    def of(self, raw: int) -> int:
        """The policy version of tokens from an engine that reported ``raw`` in this round."""
        return raw + self.offset

    def to_dict(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"offset": self.offset, "last": self.last}

    @classmethod
    def restore(cls, data: dict[str, int]) -> VersionClock:
        """Go on from a checkpoint."""
        return cls(offset=data["offset"], last=data["last"], restored=True)
