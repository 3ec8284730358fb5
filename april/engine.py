"""The Engine of a round on a real host: one group through the host's own generate-and-reward code and its engines."""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from april import samples
from april.core import Group, RoundPlan, Trajectory, TrajectoryState
from april.errors import AprilError
from april.hosts.rollout import RolloutBindings
from april.staleness import VersionClock, parse_version
from april.telemetry.timeline import Timeline
from april.workers import Workers

logger = logging.getLogger(__name__)

ABORT_AGAIN_S = 0.5


class HostEngine:
    """Implements ``april.ports.Engine``; lives as long as the data source does, over rounds begun by ``begin``.

    The host generates: what is ours is to hand it only what is left to do (ended members are passed as stand-ins), to
    record a leg per generation, and to reward what was generated but not judged when a round ended.
    """

    def __init__(self, host: RolloutBindings) -> None:
        self.host = host
        # Groups in the host's hands, with what their members had before, and the version they were submitted under.
        self._live: dict[int, tuple[Group, list[samples.Mark | None]]] = {}
        self._since: dict[int, int] = {}
        # Tasks of groups that stayed in the engines when a round ended.
        self._carried: dict[int, asyncio.Future[Group]] = {}
        # The round that generated under a version.
        self._rounds: dict[int, int] = {}
        self._requests = itertools.count()

    def begin(self, args: Any, plan: RoundPlan, workers: Workers, clock: VersionClock, line: Timeline) -> None:
        """A round begins; what goes on from earlier ones belongs to it from now on."""
        self.args = args
        self.plan = plan
        self.state = self.host.fresh_state(args)
        self._workers = workers
        self._clock = clock
        self._line = line
        self._rounds[plan.policy_version] = plan.rollout_id
        for group, marks in self._live.values():
            for member, before in zip(group.members, marks, strict=True):
                if before is not None:
                    line.watch(member.payload)

    async def submit(self, group: Group) -> Group:
        """Generate what is missing and reward it. What the host raises goes through."""
        carried = self._carried.pop(group.index, None)
        return await (self._run(group) if carried is None else carried)

    async def _run(self, group: Group) -> Group:
        started = time.time()
        group = self._whole_or_new(group)
        self._since[group.index] = self.plan.policy_version
        for member in group.members:
            self._begin(member, group)
        marks = [None if member.has_ended else samples.mark(member.payload) for member in group.members]
        self._live[group.index] = group, marks
        members, _ = await asyncio.gather(self._generate(group), self._reward_ended(group))
        times = started, time.time()
        pairs = zip(group.members, members, marks, strict=True)
        since = self._since[group.index]
        moved = [self._ended(old, new, before, self._line.span(new) or times, since) for old, new, before in pairs]
        del self._live[group.index]
        return replace(group, members=moved)

    def since(self, group: Group) -> int | None:
        """The version that a carried group was submitted under."""
        return self._since[group.index] if group.index in self._carried else None

    async def pause(self, deadline: float) -> None:
        """Every worker keeps its requests and stops."""
        await self._workers.pause(self.plan.interrupt, deadline)

    def carry(self, task: asyncio.Future[Group], group: Group) -> Group:
        """Keep the task. Known are the members that have ended, and what the others had when they were submitted."""
        self._carried[group.index] = task
        known = self._known(group)
        known.since = self._since.setdefault(group.index, self.plan.policy_version)
        return known

    async def land(self, group: Group) -> Group:
        """Abort the group's requests, again while late ones arrive; a custom generate function is cancelled."""
        task = self._carried.pop(group.index)
        live, _ = self._live.get(group.index, (group, []))
        names = [samples.request_of(member.payload).rid for member in live.members if not member.has_ended]
        deadline = time.monotonic() + self.plan.drain_deadline
        while not task.done() and all(names) and time.monotonic() < deadline:
            await self._workers.abort([name for name in names if name])
            await asyncio.wait({task}, timeout=ABORT_AGAIN_S)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=1.0)
            return self.recover(group)
        return await task

    async def abort_all(self, deadline: float) -> None:
        """No queued member starts any more, and every worker aborts until it idles."""
        self.state.aborted = True
        if self.plan.interrupt.stays:
            # A paused worker ends nothing.
            await self._workers.resume()
        await self._workers.abort_until_idle(deadline)

    async def load(self) -> int | None:
        """Requests in all workers."""
        return await self._workers.load()

    def ended(self, group: Group) -> int:
        """Members that have ended with a reward; the host writes to the samples while the group runs."""
        live, _ = self._live.get(group.index, (group, []))
        return sum(samples.trajectory(member.payload).finished for member in live.members)

    def split(self, group: Group, count: int) -> tuple[Group, Group]:
        """See ``samples.split``."""
        return samples.split(group, count)

    def restart(self, group: Group) -> Group:
        """The group's prompts only."""
        return samples.group_of([samples.restart(member.payload) for member in group.members])

    def recover(self, group: Group) -> Group:
        """What a submitted group has now, copied: its task may still be writing to the original."""
        known = self._known(group)
        self._live.pop(group.index, None)
        return known

    def _known(self, group: Group) -> Group:
        live, marks = self._live.get(group.index, (group, [None] * len(group.members)))
        since = self._since.get(group.index, self.plan.policy_version)
        moved = []
        for member, before in zip(live.members, marks, strict=True):
            span = self._line.span(member.payload) or (time.time(), time.time())
            try:
                moved.append(self._ended(member, copy.deepcopy(member.payload), before, span, since))
            except AprilError:
                # A custom generate function, cut off while it was writing: its prompt starts again.
                if before is None or not self._custom(member.payload):
                    raise
                moved.append(self._again(member))
        return replace(group, members=moved)

    # Before

    def _custom(self, sample: Any) -> bool:
        per_sample = getattr(sample, "generate_function_path", None)
        return bool(per_sample or self.args.custom_generate_function_path)

    def _whole_or_new(self, group: Group) -> Group:
        """A fan-out cannot be resumed by the host: what of it has not ended starts again from its origin.

        Where one reward judges the whole group, and a member is a list, the group starts again as a whole.
        """
        if not any(isinstance(member.payload, list) for member in group.members):
            return group
        members = [
            self._again(member)
            if self.args.group_rm or (isinstance(member.payload, list) and not member.has_ended)
            else member
            for member in group.members
        ]
        return replace(group, members=members)

    def _again(self, member: Trajectory) -> Trajectory:
        fresh = samples.trajectory(samples.restart(member.payload))
        fresh.discarded = member.length
        return fresh

    def _begin(self, member: Trajectory, group: Group) -> None:
        if member.has_ended:
            return
        sample = member.payload
        member.move(TrajectoryState.RUNNING)
        if self._custom(sample):
            samples.note(sample, origin=samples.pristine(sample))
        elif sample.response_length >= self.plan.max_response_len:
            # No token is left to ask for: no request, but a reward.
            sample.status = self.host.Sample.Status.TRUNCATED
            member.move(TrajectoryState.TRUNCATED)
            return
        elif self.host.resumes_by_text and sample.response_length and not sample.response:
            sample.response = samples.NO_TEXT
        limit = group.leg_tokens
        tokens = None if limit is None else max(1, limit - member.generated_in(self.plan.rollout_id))
        name = f"april-{group.index}-{next(self._requests)}" if self.plan.interrupt.stays else None
        samples.ask(sample, samples.Request(tokens, group.priority, name))
        self._line.watch(sample)

    # The host's call

    async def _generate(self, group: Group) -> list[Any]:
        """The host's group call, with stand-ins for ended members; returns the members as they then are."""
        if group.has_ended and not self.args.group_rm:
            return samples.payload(group)
        placeholder = None if self.args.group_rm else 0.0
        sent = [
            samples.stand_in(member.payload, placeholder) if member.has_ended else member.payload
            for member in group.members
        ]
        came = await self.host.generate_and_rm_group(
            self.args, sent, sampling_params=self.state.sampling_params.copy(), evaluation=False
        )
        if len(came) != len(sent):
            raise AprilError(f"group {group.index}: the host returned {len(came)} of {len(sent)} members")
        members = []
        for member, new in zip(group.members, came, strict=True):
            if member.has_ended and self.args.group_rm and new.reward is not None:
                member.payload.reward = new.reward
            members.append(member.payload if member.has_ended else new)
        return members

    async def _reward_ended(self, group: Group) -> None:
        """Judge members that ended in an earlier round before their judge had answered."""
        if self.args.group_rm:
            return
        waiting = [member.payload for member in group.members if member.has_ended and not member.rewarded]
        await asyncio.gather(*(self._reward(member) for member in waiting))

    async def _reward(self, member: Any) -> None:
        if not isinstance(member, list):
            member.reward = await self.host.async_rm(self.args, member)
            return
        unjudged = [sample for sample in samples.leaves(member) if sample.reward is None]
        rewards = await self.host.batched_async_rm(self.args, unjudged)
        for sample, reward in zip(unjudged, rewards, strict=True):
            sample.reward = reward

    # After

    def _ended(
        self, old: Trajectory, payload: Any, before: samples.Mark | None, span: tuple[float, float], since: int
    ) -> Trajectory:
        """The member after its leg, with the leg recorded; ``before`` is None where there was none to run."""
        if before is None:
            return samples.trajectory(payload)
        discarded = max((self._record(sample, before, since) for sample in samples.leaves(payload)), default=0)
        if not isinstance(payload, list):
            samples.forget_origin(payload)
        new = samples.trajectory(payload)
        reached, new.state = new.state, old.state
        new.move(TrajectoryState.PARTIAL if reached is TrajectoryState.PENDING else reached)
        new.discarded = old.discarded + discarded
        new.started, new.ended = span
        return new

    def _record(self, sample: Any, before: samples.Mark, since: int) -> int:
        exact = samples.versions_known(sample)

        def wrote(reported: Iterable[Any]) -> tuple[int, int]:
            version = self._policy_version(reported, since)
            if self.plan.interrupt.stays and not exact:
                # An answer names the version that it ended under; its tokens may be as old as the request.
                version = min(version, since)
            return version, self._rounds.get(version, self.plan.rollout_id)

        discarded = samples.record_leg(sample, before, wrote, self._custom(sample))
        if sample.response_length and sample.status.value == "aborted":
            sample.metadata.setdefault("start_rollout_id", self.plan.rollout_id)
        return discarded

    def _policy_version(self, reported: Iterable[Any], since: int) -> int:
        """Of a leg with several versions the oldest counts; of one without any, that under which it was submitted."""
        known = [version for version in map(parse_version, reported) if version is not None]
        return self._clock.of(min(known)) if known else since
