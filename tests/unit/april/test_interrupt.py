"""Requests that stay in the engines when a round ends (``--april-interrupt retract|inplace``). Cases 21, 23 and 27."""

from __future__ import annotations

import asyncio
import itertools
from argparse import Namespace
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeSource, play, prompt
from fake_host import World, arguments, install, source_for
from fake_sglang import FakeSglang
from hypothesis import given
from hypothesis import strategies as st

from april import samples
from april.config import REWARDS, from_args
from april.core import Interrupt
from april.errors import UsageError
from april.patches.patcher import Patcher
from april.patches.pause import hosts
from april.patches.pause.token_versions import TokenVersions
from april.rollout import generate_rollout
from april.staleness import AtCap, StalenessPolicy
from april.telemetry.events import read

LENGTHS = (3, 40, 5, 50)


@pytest.fixture
def stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[World]:
    """A host whose event loop lives on between rounds, as the real ones' does."""
    monkeypatch.setenv("APRIL_RUN_DIR", str(tmp_path))
    loop = asyncio.new_event_loop()
    server = FakeSglang(lambda ids: LENGTHS[ids[1] % 4])
    yield install(monkeypatch, server, run=loop.run_until_complete)
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.wait(left) if left else asyncio.sleep(0))
    loop.close()


def buffered(source: Any) -> list[Any]:
    return [member.payload for group in source.buffer.snapshot() for member in group.members]


def versions(sample: Any) -> list[int]:
    return [leg.policy_version for leg in samples.legs_of(sample) for _ in range(leg.length)]


@pytest.mark.parametrize("mode", ["retract", "inplace"])
def test_nothing_is_aborted_and_every_token_knows_its_weights(stays: World, tmp_path: Any, mode: str) -> None:
    args = arguments(april_interrupt=mode)
    source, server = source_for(args), stays.server
    trained: list[int] = []
    for rollout_id in range(5):
        server.weight_version = str(rollout_id + 1)
        server.stale = 10 * rollout_id
        output = generate_rollout(args, rollout_id, source)
        assert server.aborts == 0
        assert server.pauses[-1] == {"retract": "retract", "inplace": "in_place"}[mode]
        for sample in samples.leaves(output.samples):
            samples.check(sample)
            assert sample.tokens == [1, int(sample.prompt), *(1002 + i for i in range(sample.response_length))]
            assert sample.response_length == LENGTHS[int(sample.prompt) % 4]
        trained += [group[0].group_index for group in output.samples]
        held = [group.index for group in source.buffer.snapshot()]
        assert sorted({*trained, *held}) == list(range(source.sample_group_index))
        assert len(trained) == len(set(trained))
        assert not set(trained) & set(held)
        assert set(source.engine._carried) <= set(held)
    wrote = {tuple(map(int, written)) for written in server.written.values()}
    for sample in samples.leaves(output.samples):
        assert tuple(versions(sample)) in wrote
    assert any(len(set(written)) > 1 for written in wrote), "a request outlived an update"
    events = read(tmp_path / "events.jsonl", "round")
    assert sum(event["partials_resumed"] for event in events) > 0
    assert sum(event["groups_carried"] for event in events) > 0
    assert [event["stale_kv_tokens"] for event in events] == [0, 10, 10, 10, 10]
    before = 0
    for event in events:
        assert event["wasted_tokens"] == 0
        assert before + event["generated_tokens"] == event["trained_tokens"] + event["recycled_tokens"]
        before = event["recycled_tokens"]


def test_an_evaluation_lets_the_engines_go_on(stays: World) -> None:
    args = arguments(april_interrupt="retract")
    source = source_for(args)
    generate_rollout(args, 0, source)
    assert not stays.server.unpaused
    assert generate_rollout(args, 0, source, evaluation=True) == "evaluated"
    assert stays.server.unpaused


def test_what_is_in_the_engines_is_in_the_checkpoint_as_far_as_it_was_known(stays: World, tmp_path: Any) -> None:
    args = arguments(april_interrupt="retract", save=tmp_path / "saved", load=tmp_path / "saved")
    source = source_for(args)
    generate_rollout(args, 0, source)
    carried = sorted(source.engine._carried)
    assert carried
    source.save(0)
    source.buffer.close()
    again = source_for(args)
    again.load(0)
    assert [group.index for group in again.buffer.snapshot()] == carried
    for sample in buffered(again):
        samples.check(sample)
        assert sample.response_length in (0, LENGTHS[int(sample.prompt) % 4]), "what had not ended starts again"
    stays.server.weight_version = "2"
    output = generate_rollout(args, 1, again)
    assert len(output.samples) == 2
    assert all(sample.response_length == LENGTHS[int(sample.prompt) % 4] for sample in samples.leaves(output.samples))


def test_what_would_grow_too_old_is_aborted_and_starts_again(stays: World) -> None:
    args = arguments(april_interrupt="retract", april_staleness_cap=0, april_at_cap="restart")
    source = source_for(args)
    generate_rollout(args, 0, source)
    before = dict(source.engine._since)
    stays.server.weight_version = "2"
    output = generate_rollout(args, 1, source)
    assert stays.server.aborts == 0, "only theirs, by name"
    assert set(source.engine._since.items()) - set(before.items()), "they were submitted again"
    for sample in samples.leaves(output.samples):
        samples.check(sample)
        assert set(versions(sample)) == {2}


def test_tokens_of_a_custom_generate_function_are_as_old_as_its_requests(stays: World) -> None:
    """It sends its own requests, and an answer names the version that it ended under."""

    async def custom(args: Any, sample: Any, params: dict[str, Any]) -> Any:
        samples.ask(sample, samples.Request())
        return await stays.host.generate(args, sample, params)

    args = arguments(april_interrupt="retract", custom=custom, custom_generate_function_path="custom")
    source = source_for(args)
    generate_rollout(args, 0, source)
    carried = set(source.engine._carried)
    stays.server.weight_version = "2"
    output = generate_rollout(args, 1, source)
    landed = [sample for sample in samples.leaves(output.samples) if sample.group_index in carried]
    assert landed
    assert {version for sample in landed for version in versions(sample)} == {1}


def test_a_round_that_fails_aborts_what_it_carried_and_gives_it_back(stays: World) -> None:
    args = arguments(april_interrupt="retract")
    source = source_for(args)
    generate_rollout(args, 0, source)
    carried = sorted(source.engine._carried)

    async def fails(args: Any, sample: Any) -> Any:
        raise RuntimeError("the judge is gone")

    stays.host.judge = fails
    with pytest.raises(RuntimeError, match="the judge is gone"):
        generate_rollout(args, 1, source)
    assert stays.server.aborts > 0
    held = [group.index for group in source.buffer.snapshot()]
    assert set(carried) <= set(held)
    assert len(held) == len(set(held))


async def test_a_group_that_must_finish_is_waited_for() -> None:
    engine, needs = FakeEngine(), {0: 2, 1: 30, 2: 2, 3: 2}
    source = FakeSource(lambda index: prompt(index, [needs.get(index, 2)]))
    policy = StalenessPolicy(cap=1, at_cap=AtCap.FINISH)
    first = await play(engine, source, 1, 2, staleness=policy, interrupt=Interrupt.RETRACT)
    assert [group.index for group in first.carried] == [1]
    assert first.carried[0].since == 1
    engine.version, engine.rollout_id = 2, 1
    second = await play(engine, source, 1, 2, staleness=policy, interrupt=Interrupt.RETRACT)
    assert [group.index for group in second.trained] == [1], "its tokens may be one version old, which is the cap"
    assert {leg.policy_version for leg in second.trained[0].legs} == {1, 2}
    assert second.resumed == 1
    assert engine.landed == []


async def test_what_landed_younger_than_it_might_have_been_is_kept() -> None:
    engine = FakeEngine()
    needs = {0: 2, 1: 40}
    source = FakeSource(lambda index: prompt(index, [needs.get(index, 2)]))
    policy = StalenessPolicy(cap=1, at_cap=AtCap.RESTART)
    await play(engine, source, 1, 2, staleness=policy, interrupt=Interrupt.RETRACT)
    # It waited in the queue: its tokens are newer than its submission.
    source.buffer[1].since = engine.entered[1] = -5
    engine.version, engine.rollout_id = 2, 1
    result = await play(engine, source, 1, 2, staleness=policy, interrupt=Interrupt.RETRACT)
    assert engine.landed == [1]
    assert result.expired == 0
    assert engine.restarted == []
    assert result.wasted_tokens == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"april_interrupt": "wait"}, "--april-interrupt is wait: it must be abort, retract or inplace"),
        ({"partial_rollout": False}, "--april-interrupt is retract: it must be abort without --partial-rollout"),
        (
            {"april_stop": "samples", "custom_reward_post_process_path": REWARDS},
            "--april-interrupt retract: not with --april-stop samples",
        ),
        ({"rollout_external": True}, "--april-interrupt retract: not with --rollout-external, whose engines"),
        (
            {"mask_offpolicy_in_partial_rollout": True},
            "not with --mask-offpolicy-in-partial-rollout, .*correction mask",
        ),
        ({"recompute_logprobs_via_prefill": True}, "not with --recompute-logprobs-via-prefill"),
        ({"sglang_pipeline_parallel_size": 2}, "not with --sglang-pipeline-parallel-size above 1"),
        (
            {"april_interrupt": "inplace", "colocate": True},
            "inplace: not with --colocate.*use --april-interrupt retract",
        ),
        ({"april_interrupt": "inplace", "offload_rollout": True}, "inplace: not with --offload-rollout"),
    ],
)
def test_flags_that_do_not_go_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_args(Namespace(**{**vars(arguments(april_interrupt="retract")), **changes}))


def test_retract_goes_with_colocation() -> None:
    assert from_args(arguments(april_interrupt="retract", colocate=True)).interrupt is Interrupt.RETRACT


def test_the_host_pauses_in_the_mode_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an engine whose KV cache is not back yet is not told to go on."""
    posted: list[tuple[str, Any]] = []

    class Requests:
        @staticmethod
        def post(url: str, json: Any, timeout: float) -> Any:
            posted.append((url, json))
            return SimpleNamespace(raise_for_status=lambda: None)

    class Engine:
        node_rank, server_host, server_port = 0, "host", 1

        def __init__(self, offload: bool) -> None:
            self.args = Namespace(offload_rollout=offload)

        def pause_generation(self) -> None:
            raise AssertionError("aborts every request")

        def continue_generation(self) -> str:
            return "goes on"

    module: Any = ModuleType("host")
    module.SGLangEngine, module.requests = Engine, Requests
    patcher = Patcher()
    hosts.apply(module, patcher)
    for ours, theirs in (("retract", "retract"), ("inplace", "in_place")):
        monkeypatch.setenv("APRIL_INTERRUPT", ours)
        Engine(False).pause_generation()
        assert posted.pop() == ("http://host:1/pause_generation", {"mode": theirs})
    assert (Engine(False).continue_generation(), Engine(True).continue_generation()) == ("goes on", None)
    patcher.undo()
    with pytest.raises(AssertionError):
        Engine(False).pause_generation()


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("123")), max_size=8), st.integers(0, 20))
def test_a_slice_of_token_versions_is_the_version_of_each_token(marks: list[tuple[int, str]], cut: int) -> None:
    versions, expected, last = TokenVersions("0"), [], "0"
    for count, version in marks:
        expected += [last] * count
        versions.mark(len(expected), version)
        last = version
    expected += [last] * 3
    cut = min(cut, len(expected))
    assert versions[0 : len(expected)] == expected
    assert versions[0:cut] + versions[cut : len(expected)] == expected, "as SGLang sends it, in pieces"
    assert len(list(itertools.groupby(versions[0 : len(expected)]))) <= len(versions._starts)
