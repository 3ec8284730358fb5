"""One round: admit, dispatch, complete, abort, drain, recycle. Pure asyncio over an Engine and a Source.

What a round guarantees, whatever the engine does:
* every group that it takes ends in exactly one of trained, recycled, surplus or dropped (with a reason);
* what is trained has ended and has a reward, and there are exactly ``target`` such groups, or where the round ends by
  samples exactly ``target_samples`` such members;
* a rejected group is replaced at once, and counts as in flight no longer;
* draining ends within one deadline; what did not end by then is recycled with what it had;
* where requests stay in the engines, a group is put back as far as it is known, and taken again it goes on as it is;
* with a leg budget no response generates more than it in this round, unless the round has to wait for it;
* where too few groups can ever finish, it fails with a reason and gives back what it holds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import NoReturn

from april.core import Dropped, Group, RoundPlan, RoundResult, priority
from april.drain import End, drain, suspend
from april.errors import AprilError
from april.legs import spans
from april.ports import Engine, Judge, Source, keep_all
from april.staleness import Action, StalenessPolicy

logger = logging.getLogger(__name__)

MAX_STALLS = 3
STALL_PAUSE_S = 0.2
LOOK_EVERY_S = 0.05
NO_REWARD = "no_reward"


async def run_round(
    plan: RoundPlan, staleness: StalenessPolicy, source: Source, engine: Engine, judge: Judge = keep_all
) -> RoundResult:
    """Run one round to its end. Raises AprilError where it cannot reach its target, after giving its groups back."""
    return await Round(plan, staleness, source, engine, judge).run()


class Round:
    """The state of one round. ``_must`` holds the indices of groups that this round has to wait for."""

    def __init__(
        self, plan: RoundPlan, staleness: StalenessPolicy, source: Source, engine: Engine, judge: Judge
    ) -> None:
        self.plan = plan
        self.staleness = staleness
        self.source = source
        self.engine = engine
        self.judge = judge
        self.result = RoundResult(plan)
        self._running: dict[asyncio.Future[Group], Group] = {}
        self._candidates: list[Group] = []
        self._must: set[int] = set()
        self._parked: list[Group] = []
        # Groups that came with requests in the engines: what they had generated there is counted when they end.
        self._landing: set[int] = set()
        # Groups dropped since one was kept: for want of a reward, and by the judge.
        self._unrewarded = 0
        self._rejected = 0

    async def run(self) -> RoundResult:
        """See ``run_round``."""
        try:
            self._fill()
            while not self._complete():
                await self._step()
        except BaseException:
            await self._drain()
            self._give_up()
            raise
        await (self._suspend() if self.plan.interrupt.stays else self._drain())
        self._harvest()
        self._recycle()
        return self.result

    def _give_up(self) -> None:
        held = {group.index: group for group in self.result.trained}
        self.result.trained = []
        # What was taken out of a group goes back into it.
        for groups in (self._candidates, self.result.recycled, self._parked):
            groups[:] = [group.joined(held.pop(group.index, None)) for group in groups]
        self.result.surplus += held.values()
        self._recycle()

    # Admission and dispatch

    def _outstanding(self) -> int:
        """Groups that were trained or still may be, in this round; by samples in whole groups, since parts are less."""
        held = self._held()
        if self.plan.target_samples is None:
            return len(held)
        return self._units(held) * self.plan.target // self.plan.target_samples

    def _held(self) -> list[Group]:
        return [*self._running.values(), *self._candidates, *self.result.trained]

    def _complete(self) -> bool:
        if self._goal() == self._units(self.result.trained):
            return True
        # By samples: finished members of running groups count. Those that must finish are waited for.
        missing = self._goal() - self._units(self.result.trained)
        if self.plan.target_samples is None or self._must:
            return False
        running = sum(self._ready(group, self.engine.ended(group)) for group in self._running.values())
        return running + sum(self._ready(group, group.ended) for group in self._parked) >= missing

    def _goal(self) -> int:
        return self.plan.target if self.plan.target_samples is None else self.plan.target_samples

    def _units(self, groups: Iterable[Group]) -> int:
        """What counts towards the goal: groups, or their members."""
        return sum(1 if self.plan.target_samples is None else len(group.members) for group in groups)

    def _ready(self, group: Group, ended: int) -> int:
        """Of ``ended`` members of a group those that could be trained although others have not ended."""
        return ended if ended + group.earlier >= self.plan.min_group else 0

    def _fill(self) -> None:
        """Take groups until ``over_sampling`` are outstanding or the source has no more."""
        while not self._complete() and (want := self.plan.over_sampling - self._outstanding()) > 0:
            groups = self.source.take(want)
            self._admit(groups)
            self._select()
            if len(groups) < want:
                self._unpark(self.plan.over_sampling - self._outstanding())
                break
        if not self._complete() and self._units(self._held()) < self._goal():
            self._fail(
                f"{self._outstanding()} of {self.plan.target} groups can still finish and the data source has no more "
                "prompts; give it more, or lower --rollout-batch-size"
            )

    def _admit(self, groups: list[Group]) -> None:
        for group in groups:
            group.since = self.engine.since(group)
        groups = [group if group.since is not None else self._aged(group) for group in groups]
        for group in sorted(groups, key=lambda group: priority(group, self.plan.max_response_len)):
            must = self.staleness.action(group, self.plan.policy_version) is Action.MUST_FINISH
            if must and self._must_units() + self._units([*self.result.trained, group]) <= self._goal():
                self._must.add(group.index)
            if group.finished:
                self._candidates.append(group)
            else:
                self.result.submitted += 1
                self._dispatch(group)

    def _aged(self, group: Group) -> Group:
        """The group, or its prompt alone where it became too old."""
        if not self._too_old(group):
            return group
        self.result.expired += 1
        self.result.wasted_tokens += group.tokens
        return self.engine.restart(group)

    def _too_old(self, group: Group) -> bool:
        return self.staleness.action(group, self.plan.policy_version) is Action.RESTART

    def _must_units(self) -> int:
        """Places that must-finish groups, running or about to be judged, will take."""
        waiting = (*self._running.values(), *self._candidates)
        return self._units(group for group in waiting if group.index in self._must)

    def _dispatch(self, group: Group, limited: bool = True) -> None:
        group.leg_tokens = self.plan.leg_tokens if limited and group.index not in self._must else None
        if self.plan.prioritise:
            group.priority = group.lag(self.plan.policy_version) + (0 if group.fresh else 1)
        self._running[asyncio.ensure_future(self._submit(group))] = group

    async def _submit(self, group: Group) -> Group:
        if group.stalls:
            await asyncio.sleep(STALL_PAUSE_S * group.stalls)
        if group.since is not None:
            self._landing.add(group.index)
            if self._too_old(group):
                return await self.engine.land(group)
        return await self.engine.submit(group)

    # Completion

    async def _step(self) -> None:
        """Wait for a group to end, decide about it, and refill. By samples, look at those that run as well."""
        look = None if self.plan.target_samples is None else LOOK_EVERY_S
        done, _ = await asyncio.wait(self._running, timeout=look, return_when=asyncio.FIRST_COMPLETED)
        # In order of dispatch, so that equal timing gives equal batches.
        for task in [task for task in self._running if task in done]:
            self._completed(task)
        self._select()
        self._fill()

    def _completed(self, task: asyncio.Future[Group]) -> None:
        if task.exception() is not None:
            # Left among the running for the drain, which recovers its group.
            task.result()
        before = self._running.pop(task)
        group = task.result()
        self._count(before, group)
        if before.since is not None and self._too_old(group):
            # Only now its tokens are known.
            self._must.discard(group.index)
            self.result.generated_tokens += group.generated_in(self.plan.rollout_id)
            self._dispatch(self._aged(group))
        elif group.finished:
            self._candidates.append(group)
        elif group.has_ended:
            self._must.discard(group.index)
            self._drop(group, NO_REWARD)
        elif self._at_budget(group):
            self._park(group)
        else:
            self._resubmit(group, progressed=group.tokens > before.tokens)

    def _resubmit(self, group: Group, progressed: bool) -> None:
        """An engine aborted the group on its own account (a restart, somebody else's abort): it goes on."""
        group.stalls = 0 if progressed else group.stalls + 1
        if group.stalls > MAX_STALLS:
            self.result.recycled.append(group)
            self._fail(
                f"group {group.index} came back aborted {group.stalls} times without a new token; look in the engines' "
                "logs for what aborts it"
            )
        self._dispatch(group)

    def _at_budget(self, group: Group) -> bool:
        """Whether every member that has not ended has generated its leg of this round."""
        limit, rollout_id = group.leg_tokens, self.plan.rollout_id
        going = [member for member in group.members if not member.has_ended]
        return limit is not None and all(member.generated_in(rollout_id) >= limit for member in going)

    def _park(self, group: Group) -> None:
        """It goes on in a later round, and another takes its place; where too many wait already it goes on now."""
        if len(self._parked) >= self.plan.over_sampling:
            self._dispatch(group, limited=False)
            return
        self._parked.append(group)
        self.result.parked += 1

    def _unpark(self, count: int) -> None:
        """There is nothing else to run: those that wait go on, without a budget."""
        for _ in range(min(count, len(self._parked))):
            self.result.parked -= 1
            self._dispatch(self._parked.pop(0), limited=False)

    def _count(self, before: Group, group: Group) -> None:
        """Tokens that a custom generate function threw away by starting over."""
        for old, new in zip(before.members, group.members, strict=True):
            if new.discarded:
                self.result.wasted_tokens += new.discarded
                self.result.generated_tokens += old.generated_in(self.plan.rollout_id)
        self._count_late(before, group)

    def _count_late(self, before: Group, group: Group) -> None:
        """Tokens of earlier rounds that are known only now: the group was in the engines."""
        if before.index in self._landing:
            self._landing.discard(before.index)
            late = group.tokens - before.tokens - group.generated_in(self.plan.rollout_id)
            self.result.generated_tokens += max(0, late)

    # Selection

    def _select(self) -> None:
        """Judge finished groups while there is room: first those that must be trained now, then in order of completion.

        Places are held for must-finish groups that still run; whoever finds no place stays a candidate, unjudged.
        """
        self._candidates.sort(key=lambda group: group.index not in self._must)
        while self._candidates and (self._candidates[0].index in self._must or self._room() > 0):
            self._fit(self._candidates[0])
            group = self._candidates[0]
            verdict = self.judge(group, self._outstanding())
            self._candidates.pop(0)
            self._must.discard(group.index)
            if verdict.keep:
                self._unrewarded = self._rejected = 0
                self.result.trained.append(group)
            else:
                self._drop(group, verdict.reason)

    def _room(self) -> int:
        return self._goal() - self._units(self.result.trained) - self._must_units()

    def _fit(self, group: Group) -> None:
        """By samples: of a finished group that is larger than the room for it, what fits stays the first candidate."""
        must = group.index in self._must
        room = self._goal() - self._units(self.result.trained) if must else self._room()
        if self._units([group]) > room:
            self._candidates[:1] = self.engine.split(group, room)

    def _harvest(self) -> None:
        """By samples: after the drain, train the finished members of groups whose others go on in a later round."""
        if self.plan.target_samples is None:
            return
        self._select()
        self.result.recycled += self._parked
        self._parked = []
        for group in sorted(self.result.recycled, key=lambda group: -group.ended):
            room = self._goal() - self._units(self.result.trained)
            if room and (ready := self._ready(group, group.ended)):
                now, rest = self.engine.split(group, min(room, ready))
                self.result.recycled = [rest if other is group else other for other in self.result.recycled]
                self.result.trained.append(now)
        if self._units(self.result.trained) != self._goal():
            self._give_up()
            self._fail(f"{self._units(self.result.trained)} of {self._goal()} samples were left after the drain")

    def _drop(self, group: Group, reason: str) -> None:
        self.result.dropped.append(Dropped(group, reason))
        self.result.wasted_tokens += group.tokens
        if reason == NO_REWARD:
            self._unrewarded += 1
        else:
            self._rejected += 1
        if self._unrewarded > self.plan.over_sampling:
            self._fail(f"{self._unrewarded} groups in a row ended without a reward; look at the reward function")
        if self._rejected > self.plan.max_rejected:
            self._fail(f"{self._rejected} groups in a row were rejected, the last as {reason}; look at the filter")

    def _fail(self, what: str) -> NoReturn:
        raise AprilError(f"round {self.plan.rollout_id}: {what}")

    # The end of a round

    async def _drain(self) -> None:
        """Stop what still runs: finished groups become candidates, the others are to be recycled."""
        if not self._running:
            return
        started = time.monotonic()
        running, self._running = self._running, {}
        ends, self.result.load_after = await drain(self.engine, running, self.plan.drain_deadline)
        self._ended(ends)
        self.result.drain_seconds = time.monotonic() - started

    async def _suspend(self) -> None:
        """Leave in the engines what still runs; what has ended meanwhile is as after a drain."""
        started = time.monotonic()
        running, self._running = self._running, {}
        ends, carried = await suspend(self.engine, running, self.plan.drain_deadline)
        for before, known in carried:
            self._count_late(before, known)
        self.result.carried = [known for _, known in carried]
        self._ended(ends)
        self.result.drain_seconds = time.monotonic() - started

    def _ended(self, ends: Iterable[End]) -> None:
        for end in ends:
            if end.error is not None:
                logger.warning("drain of round %s: %s; recycled with what it had", self.plan.rollout_id, end.error)
                self.result.drain_errors.append(end.error)
            self._count(end.before, end.group)
            (self._candidates if end.group.finished else self.result.recycled).append(end.group)

    def _recycle(self) -> None:
        """Give back what is not trained; without ``keep_partials`` as new prompts, since versions must not mix."""
        result, rollout_id = self.result, self.plan.rollout_id
        surplus, partials = self._candidates + result.surplus, result.recycled + self._parked
        self._parked = []
        dropped = [drop.group for drop in result.dropped]
        self._candidates = []
        for group in (*result.trained, *surplus, *partials, *dropped, *result.carried):
            result.generated_tokens += group.generated_in(rollout_id)
            result.resumed += group.resumed_in(rollout_id)
        result.spans = [span for group in (*result.trained, *dropped) for span in spans(group, rollout_id)]
        result.spans += [span for group in (*partials, *result.carried) for span in spans(group, rollout_id)]
        result.spans += [span for group in surplus for span in spans(group, rollout_id, "surplus")]
        if not self.plan.keep_partials:
            result.wasted_tokens += sum(group.tokens for group in (*surplus, *partials))
            surplus, partials = [], [self.engine.restart(group) for group in (*surplus, *partials)]
        result.surplus, result.recycled = surplus, partials
        self.source.put([*surplus, *partials, *result.carried])
