"""An Engine and a Source without a host: one token per turn of the event loop, no real time."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from april.core import Group, Leg, RoundPlan, RoundResult, Trajectory, TrajectoryState, priority
from april.ports import Judge, keep_all
from april.round import run_round
from april.staleness import StalenessPolicy

S = TrajectoryState


@dataclass
class Response:
    """The payload: token ``i`` is always ``i``. It ends after ``need`` tokens."""

    need: int
    tokens: list[int] = field(default_factory=list)
    # Version and round of each token that was generated since it was submitted.
    stamps: list[tuple[int, int]] = field(default_factory=list)


def prompt(index: int, needs: Sequence[int]) -> Group:
    return Group(index, [Trajectory(Response(need)) for need in needs])


def partial(index: int, version: int, done: int, needs: Sequence[int], rollout_id: int = 0) -> Group:
    """A group whose members all hold ``done`` tokens of ``version``."""
    group = prompt(index, needs)
    for member in group.members:
        member.payload.tokens = list(range(done))
        member.state, member.length = S.PARTIAL, done
        member.legs = (Leg(version, 0, done, rollout_id),)
    return group


def finished(index: int, version: int, length: int = 2, members: int = 1) -> Group:
    group = partial(index, version, length, [length] * members)
    for member in group.members:
        member.state, member.rewarded = S.FINISHED, True
    return group


class FakeEngine:
    """Options: ``reward`` None stands for a judge without an answer; ``judge_s`` is how long it thinks;
    ``hiccups[index]`` submissions of a group come back aborted at once; ``errors[index]`` is raised."""

    def __init__(self, max_len: int = 1000) -> None:
        self.version, self.rollout_id, self.max_len = 1, 0, max_len
        self.aborting = False
        self.aborts = 0
        self.order: list[int] = []
        self.restarted: list[int] = []
        self.rewarded: Callable[[int], bool] = lambda index: True
        self.judge_s: dict[int, float] = {}
        self.hiccups: dict[int, int] = {}
        self.errors: dict[int, Exception] = {}
        self.deaf: set[int] = set()
        self.paused = False
        self.flights: dict[int, asyncio.Future[Group]] = {}
        self.entered: dict[int, int] = {}
        self.live: dict[int, Group] = {}
        self.landing: set[int] = set()
        self.landed: list[int] = []

    async def submit(self, group: Group) -> Group:
        if group.index in self.flights:
            return await self.flights.pop(group.index)
        self.entered[group.index] = self.version
        self.live[group.index] = group
        self.landing.discard(group.index)
        for member in group.members:
            member.payload.stamps = []
        self.order.append(group.index)
        for member in group.members:
            if not member.has_ended:
                member.move(S.RUNNING)
        stop_now = self.hiccups.get(group.index, 0) > 0
        if stop_now:
            self.hiccups[group.index] -= 1
        running = [member for member in group.members if not member.has_ended]
        held = {id(member): len(member.payload.tokens) - member.generated_in(self.rollout_id) for member in running}

        def grows(member: Trajectory) -> bool:
            leg = len(member.payload.tokens) - held[id(member)]
            return self._grows(member) and (group.leg_tokens is None or leg < group.leg_tokens)

        while not stop_now and not self._stopped(group) and any(map(grows, running)):
            await asyncio.sleep(0)
            if self.paused:
                continue
            if group.index in self.errors:
                raise self.errors[group.index]
            for member in running:
                if grows(member):
                    member.payload.tokens.append(len(member.payload.tokens))
                    member.payload.stamps.append((self.version, self.rollout_id))
        if not any(self._grows(member) for member in running):
            await asyncio.sleep(self.judge_s.get(group.index, 0))
        return self._after(group, judged=True)

    def _stopped(self, group: Group) -> bool:
        return group.index in self.landing or (self.aborting and group.index not in self.deaf)

    def _grows(self, member: Trajectory) -> bool:
        return len(member.payload.tokens) < min(member.payload.need, self.max_len)

    def _after(self, group: Group, judged: bool) -> Group:
        return replace(group, members=[self._ended(group.index, old, judged) for old in group.members])

    def _ended(self, index: int, old: Trajectory, judged: bool) -> Trajectory:
        if old.has_ended:
            return Trajectory(old.payload, old.state, old.legs, old.length, old.rewarded or self.rewarded(index))
        length = len(old.payload.tokens)
        new = Trajectory(old.payload, old.state, old.legs, length)
        start = old.length
        for (version, rollout_id), stamps in itertools.groupby(old.payload.stamps):
            new.legs = (*new.legs, Leg(version, start, count := len(list(stamps)), rollout_id))
            start += count
        assert start == length
        ended = not self._grows(new)
        new.move((S.FINISHED if length >= old.payload.need else S.TRUNCATED) if ended else S.PARTIAL)
        new.rewarded = ended and judged and self.rewarded(index)
        return new

    def ended(self, group: Group) -> int:
        return sum(member.finished or self._has_ended_now(group, member) for member in group.members)

    def _has_ended_now(self, group: Group, member: Trajectory) -> bool:
        return not member.has_ended and not self._grows(member) and self.rewarded(group.index)

    def split(self, group: Group, count: int) -> tuple[Group, Group]:
        ended = [member for member in group.members if member.finished][:count]
        rest = [member for member in group.members if not any(member is one for one in ended)]
        return Group(group.index, ended, earlier=group.earlier), Group(group.index, rest, earlier=group.earlier + count)

    async def abort_all(self, deadline: float) -> None:
        self.aborting = True
        self.aborts += 1

    def since(self, group: Group) -> int | None:
        return self.entered[group.index] if group.index in self.flights else None

    async def pause(self, deadline: float) -> None:
        self.paused = True

    def carry(self, task: asyncio.Future[Group], group: Group) -> Group:
        self.flights[group.index] = task
        # What came out of the buffer is not what the task has.
        known = copy.deepcopy(self.live.get(group.index, group))
        for place, member in enumerate(known.members):
            if member.state is S.RUNNING and self._grows(member):
                del member.payload.tokens[member.length :]
                member.state = S.PARTIAL if member.length else S.PENDING
            elif member.state is S.RUNNING:
                known.members[place] = self._ended(group.index, member, judged=False)
        known.since = self.entered[group.index]
        return known

    async def land(self, group: Group) -> Group:
        self.landing.add(group.index)
        self.landed.append(group.index)
        return await self.flights.pop(group.index)

    async def load(self) -> int | None:
        return 0

    def recover(self, group: Group) -> Group:
        group = copy.deepcopy(group)
        for member in group.members:
            # Cancelled before it was submitted.
            if member.state is S.PENDING:
                member.move(S.RUNNING)
        return self._after(group, judged=False)

    def restart(self, group: Group) -> Group:
        self.restarted.append(group.index)
        fresh = prompt(group.index, [member.payload.need for member in group.members])
        fresh.earlier = group.earlier
        return fresh


class FakeSource:
    """Buffered groups by priority, then new prompts made by ``new(index)`` until it returns None."""

    def __init__(self, new: Callable[[int], Group | None], max_len: int = 1000) -> None:
        self.new, self.max_len = new, max_len
        self.buffer: dict[int, Group] = {}
        self.next = 0
        self.asked: list[int] = []

    def take(self, count: int) -> list[Group]:
        self.asked.append(count)
        held = sorted(self.buffer.values(), key=lambda group: priority(group, self.max_len))[:count]
        for group in held:
            del self.buffer[group.index]
        while len(held) < count and (group := self.new(self.next)) is not None:
            self.next += 1
            held.append(group)
        return held

    def put(self, groups: Sequence[Group]) -> None:
        for group in groups:
            assert group.index not in self.buffer, f"group {group.index} is put twice"
            self.buffer[group.index] = group


def plan_for(engine: FakeEngine, target: int, over: int, **options: object) -> RoundPlan:
    return RoundPlan(engine.rollout_id, engine.version, target, over, engine.max_len, **options)  # type: ignore[arg-type]


async def play(
    engine: FakeEngine,
    source: FakeSource,
    target: int,
    over: int,
    judge: Judge = keep_all,
    staleness: StalenessPolicy | None = None,
    **options: object,
) -> RoundResult:
    """One round."""
    engine.aborting = engine.paused = False
    plan = plan_for(engine, target, over, **options)
    return await run_round(plan, staleness or StalenessPolicy(), source, engine, judge)
