"""Invariants of design.md over any interleaving of finishes, aborts, filter drops, weight updates and restarts."""

from __future__ import annotations

import asyncio
import copy

from fake_engine import FakeEngine, FakeSource, Response, play, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from april.core import Group, Interrupt, Leg, RoundResult, legs_fault, versions_of
from april.ports import Verdict
from april.staleness import AtCap, StalenessPolicy, VersionClock, capped_mask

LONG = 60


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, object]:
    target = draw(st.integers(1, 4))
    return {
        "target": target,
        "over": target + draw(st.integers(0, 8)),
        "members": draw(st.integers(1, 3)),
        "needs": draw(st.lists(st.integers(1, LONG), min_size=8, max_size=24)),
        "updates": draw(st.lists(st.integers(0, 2), min_size=3, max_size=10)),
        "drop_every": draw(st.sampled_from([0, 0, 3, 5])),
        "no_reward_every": draw(st.sampled_from([0, 0, 7])),
        "hiccup_every": draw(st.sampled_from([0, 4])),
        "keep_partials": draw(st.sampled_from([True, True, True, False])),
        "cap": draw(st.integers(0, 5)),
        "at_cap": draw(st.sampled_from(list(AtCap))),
        "leg_tokens": draw(st.sampled_from([None, None, 1, 7, 25])),
        "crash_after": draw(st.sampled_from([None, 1, 2])),
        "interrupt": draw(st.sampled_from(list(Interrupt))),
    }


class Ledger:
    """Where every prompt went."""

    def __init__(self) -> None:
        self.trained: dict[int, int] = {}
        self.dropped: dict[int, int] = {}

    def enter(self, result: RoundResult) -> None:
        for group in result.trained:
            self.trained[group.index] = self.trained.get(group.index, 0) + 1
        for drop in result.dropped:
            self.dropped[drop.group.index] = self.dropped.get(drop.group.index, 0) + 1

    def check(self, source: FakeSource) -> None:
        places = [*self.trained, *self.dropped, *source.buffer]
        assert sorted(places) == list(range(source.next)), "each prompt handed out is in one place"
        assert set(self.trained.values()) | set(self.dropped.values()) <= {1}, "exactly once"


def check_lengths(group: Group) -> None:
    for member in group.members:
        response: Response = member.payload
        assert response.tokens == list(range(member.length)), "the tokens that the engine generated, in order"
        assert legs_fault(member.legs, member.length) is None
        versions = versions_of(member.legs)
        assert len(versions) == member.length
        assert versions == sorted(versions)


def check_round(result: RoundResult, held_before: int, source: FakeSource, policy: StalenessPolicy) -> None:
    plan = result.plan
    assert len(result.trained) == plan.target
    for group in result.trained:
        assert group.finished
        check_lengths(group)
        for member in group.members:
            mask = capped_mask(None, member.legs, plan.policy_version, policy.cap)
            ages = [plan.policy_version - version for version in versions_of(member.legs)]
            weighted = (
                ages if policy.at_cap is not AtCap.MASK else [age for age, one in zip(ages, mask, strict=True) if one]
            )
            assert all(0 <= age <= policy.cap for age in weighted), "no trained token is older than the cap"
    for group in (*result.recycled, *result.surplus, *result.carried):
        check_lengths(group)
    held = sum(group.tokens for group in source.buffer.values())
    spent = result.trained_tokens + held + result.wasted_tokens
    assert held_before + result.generated_tokens == spent, "every token is trained, kept or counted as wasted"


async def rounds(scenario: dict[str, object]) -> None:
    needs, members = scenario["needs"], scenario["members"]
    policy = StalenessPolicy(scenario["cap"], scenario["at_cap"])  # type: ignore[arg-type]
    engine, ledger = FakeEngine(max_len=LONG - 10), Ledger()
    source = FakeSource(
        lambda index: prompt(index, [needs[(index * 7 + i) % len(needs)] for i in range(members)]),  # type: ignore
        engine.max_len,
    )
    every = {name: scenario[f"{name}_every"] for name in ("drop", "no_reward", "hiccup")}

    def hit(name: str, index: int) -> bool:
        return bool(every[name]) and index % every[name] == 1  # type: ignore[operator]

    engine.rewarded = lambda index: not hit("no_reward", index)
    engine.hiccups = {index: 2 for index in range(200) if hit("hiccup", index)}
    saved = None
    for number, update in enumerate(scenario["updates"]):  # type: ignore[arg-type, var-annotated]
        engine.rollout_id, engine.version = number, engine.version + update
        held_before = sum(group.tokens for group in source.buffer.values())
        result = await play(
            engine,
            source,
            scenario["target"],  # type: ignore[arg-type]
            scenario["over"],  # type: ignore[arg-type]
            judge=lambda group, remaining: Verdict(not hit("drop", group.index), "low"),
            staleness=policy,
            keep_partials=scenario["keep_partials"],
            leg_tokens=scenario["leg_tokens"],
            interrupt=scenario["interrupt"] if scenario["keep_partials"] else Interrupt.ABORT,
        )
        ledger.enter(result)
        ledger.check(source)
        check_round(result, held_before, source, policy)
        assert set(engine.flights) <= set(source.buffer), "what is in the engines is held as well"
        if number == scenario["crash_after"] and saved is not None:
            # Back to the last checkpoint: weights, counters and buffer of that round.
            source.buffer, source.next, ledger = copy.deepcopy(saved)
            ledger.check(source)
            await lose(engine)
        saved = copy.deepcopy((source.buffer, source.next, ledger))


async def lose(engine: FakeEngine) -> None:
    """The engines go down with the run, and their requests with them."""
    tasks = list(engine.flights.values())
    engine.flights.clear()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@settings(max_examples=150, deadline=None)
@given(scenarios())
def test_rounds(scenario: dict[str, object]) -> None:
    asyncio.run(rounds(scenario))


@st.composite
def by_samples(draw: st.DrawFn) -> dict[str, object]:
    members = draw(st.integers(1, 4))
    return {
        **draw(scenarios()),
        "members": members,
        "min_group": draw(st.integers(1, members)),
        "drop_every": 0,
        "keep_partials": True,
    }


async def rounds_by_samples(scenario: dict[str, object]) -> None:
    """Every response is trained once, dropped once or held; batches have exactly the asked size."""
    needs, members, target = scenario["needs"], scenario["members"], scenario["target"]
    engine = FakeEngine(max_len=LONG - 10)
    source = FakeSource(
        lambda index: prompt(index, [needs[(index * 7 + i) % len(needs)] for i in range(members)]),  # type: ignore
        engine.max_len,
    )
    no_reward = scenario["no_reward_every"]
    engine.rewarded = lambda index: not (no_reward and index % no_reward == 1)  # type: ignore[operator]
    trained: dict[int, int] = {}
    dropped: dict[int, int] = {}
    policy = StalenessPolicy(scenario["cap"], scenario["at_cap"])  # type: ignore[arg-type]
    for number, update in enumerate(scenario["updates"]):  # type: ignore[arg-type, var-annotated]
        engine.rollout_id, engine.version = number, engine.version + update
        result = await play(
            engine,
            source,
            target,  # type: ignore[arg-type]
            scenario["over"],  # type: ignore[arg-type]
            staleness=policy,
            target_samples=target * members,  # type: ignore[operator]
            min_group=scenario["min_group"],
            leg_tokens=scenario["leg_tokens"],
        )
        assert sum(len(group.members) for group in result.trained) == target * members  # type: ignore[operator]
        for group in result.trained:
            assert group.finished
            assert group.members
            check_lengths(group)
            if policy.at_cap is not AtCap.MASK:
                assert group.lag(engine.version) <= policy.cap
            trained[group.index] = trained.get(group.index, 0) + len(group.members)
        for drop in result.dropped:
            dropped[drop.group.index] = dropped.get(drop.group.index, 0) + len(drop.group.members)
        for index in range(source.next):
            held = len(source.buffer[index].members) if index in source.buffer else 0
            assert trained.get(index, 0) + dropped.get(index, 0) + held == members
            if held:
                assert source.buffer[index].earlier == trained.get(index, 0)


@settings(max_examples=150, deadline=None)
@given(by_samples())
def test_rounds_by_samples(scenario: dict[str, object]) -> None:
    asyncio.run(rounds_by_samples(scenario))


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30))
def test_versions_never_go_back(steps: list[tuple[int, bool]]) -> None:
    """Whatever the engines report, over restarts of the run or of an engine."""
    clock, last = VersionClock(), 0
    for raw, restarted in steps:
        if restarted:
            clock = VersionClock.restore(clock.to_dict())
        version = clock.observe(raw)
        assert version > last if restarted else version >= last
        assert clock.of(raw) == version
        last = version


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4)), max_size=6),
    st.integers(0, 12),
    st.integers(0, 6),
    st.data(),
)
def test_a_mask_only_loses_weight(pieces: list[tuple[int, int]], version: int, cap: int, data: st.DataObject) -> None:
    """Case 8: what was rejected stays rejected, and the mask has the response's length."""
    legs, start = [], 0
    for policy_version, length in pieces:
        legs.append(Leg(policy_version, start, length, 0))
        start += length
    mask = data.draw(st.none() | st.lists(st.integers(0, 1), min_size=start, max_size=start))
    new = capped_mask(mask, legs, version, cap)
    assert len(new) == start
    for old, now, token_version in zip(mask or [1] * start, new, versions_of(legs), strict=True):
        assert now <= old
        assert now == (old if version - token_version <= cap else 0)
