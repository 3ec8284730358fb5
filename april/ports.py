"""What a round needs of the world: engines to generate, a source of groups, a judge of finished ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from april.core import Group


class Engine(Protocol):
    """The engines behind the router, and the host's code that drives one group through them."""

    def submit(self, group: Group) -> Awaitable[Group]:
        """Generate and reward; returns the group as it then stands, partial where it was aborted.

        A carried group is not generated again: its task goes on.
        """
        ...

    async def abort_all(self, deadline: float) -> None:
        """Abort on every engine until all are idle or ``deadline`` (``time.monotonic``); a dead engine is no error."""
        ...

    def since(self, group: Group) -> int | None:
        """The policy version under which a group went into the engines, where it still is; None where it is not."""
        ...

    async def pause(self, deadline: float) -> None:
        """Every engine keeps its requests and generates no more until it goes on; a dead engine is no error."""
        ...

    def carry(self, task: asyncio.Future[Group], group: Group) -> Group:
        """Keep a submitted group's task for a later round, whose ``submit`` of this group gives its result.

        Returns the group as far as it is known now, detached from the task.
        """
        ...

    async def land(self, group: Group) -> Group:
        """End a carried group: abort its requests and return it with what it has."""
        ...

    async def load(self) -> int | None:
        """Requests in all engines; None where it is unknown, which is not idle."""
        ...

    def recover(self, group: Group) -> Group:
        """A submitted group whose task failed or was cancelled, with what it had, detached from that task."""
        ...

    def ended(self, group: Group) -> int:
        """Members of a submitted group that have ended with a reward by now."""
        ...

    def split(self, group: Group, count: int) -> tuple[Group, Group]:
        """The group's first ``count`` finished members, to be trained now, and the others."""
        ...

    def restart(self, group: Group) -> Group:
        """The group as new: its prompt only."""
        ...


class Source(Protocol):
    """Where groups come from, and where those that are not trained go."""

    def take(self, count: int) -> list[Group]:
        """Up to ``count`` groups; fewer only when there are no more."""
        ...

    def put(self, groups: Sequence[Group]) -> None:
        """Keep for a later round."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a filter says of a finished group."""

    keep: bool
    reason: str = "filtered"


# (group, groups that could still be trained, itself included) -> Verdict
Judge = Callable[[Group, int], Verdict]


def keep_all(group: Group, remaining: int) -> Verdict:
    """The judge without a filter."""
    return Verdict(True)
