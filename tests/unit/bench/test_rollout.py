"""The rollout function: one round of each mode in turn, every response as long as the trace says, calls remembered."""

from __future__ import annotations

import asyncio
import types
from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from april.errors import AprilError
from april.launch.bench import rollout
from april.launch.bench.bound import Stair
from april.launch.bench.forced import Forced
from april.launch.bench.rollout import Bench, Mode
from april.launch.bench.settings import Settings


class Status(Enum):
    PENDING = "pending"
    TRUNCATED = "truncated"


@dataclass
class Sample:
    index: int
    tokens: list[int] = field(default_factory=lambda: [1, 2])
    response_length: int = 0
    status: Status = Status.PENDING
    weight_versions: list[str] = field(default_factory=list)


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any], **more: Any) -> Sample:
    """As the hosts': what the response has already is subtracted; at most ``args.leg`` tokens before an abort."""
    assert sampling_params["ignore_eos"] is True
    new = min(sampling_params["max_new_tokens"] - sample.response_length, args.leg)
    sample.tokens = sample.tokens + [0] * new
    sample.response_length += new
    sample.weight_versions.append(args.version)
    return sample


def host_module() -> Any:
    module = types.ModuleType("rollout_of_a_host")
    module.generate = generate  # type: ignore[attr-defined]
    return module


async def test_lengths_are_forced_and_calls_remembered() -> None:
    module = host_module()
    forced = Forced((5, 9), lambda: 4)
    forced.install(module)
    given = {"max_new_tokens": 100, "temperature": 1.0}
    sample = Sample(1)
    await module.generate(Namespace(leg=6, version="3"), sample, given)
    await module.generate(Namespace(leg=6, version="default"), sample, given)
    await module.generate(Namespace(leg=0, version="odd"), Sample(0), given)
    assert given == {"max_new_tokens": 100, "temperature": 1.0}
    assert [(call.sample, call.before, call.after, call.version) for call in forced.take()] == [
        (1, 0, 6, 3),
        (1, 6, 9, 0),
        (0, 0, 0, 4),
    ]
    assert forced.take() == []
    forced.undo()
    assert module.generate is generate


class Server:
    def __init__(self) -> None:
        self.log: list[str] = []

    async def update(self, version: int | None) -> None:
        self.log.append(f"update {version}")

    async def staircase(self, prompt: int, most: int) -> tuple[list[Stair], float]:
        self.log.append(f"staircase {prompt}")
        return [Stair(1, 8, 80.0, 0.1)], 0.001


class Source:
    def __init__(self) -> None:
        self.next = 0
        self.buffer: list[Any] = [[Sample(9, response_length=3)]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(rollout, "emit", lambda event, **fields: events.append({"event": event, **fields}))
    return events


def bench(server: Server, module: Any, lengths: tuple[int, ...] = (3, 4)) -> Bench:
    settings = Settings(modes=("sync", "april"), batch=1, samples=1, lengths=lengths)
    host: Any = types.SimpleNamespace(name="fake", run=asyncio.run, fresh_state=lambda args: None)
    made = Bench(host, server, settings)  # type: ignore[arg-type]
    made.forced = Forced(lengths, lambda: made.version)
    made.forced.install(module)

    def play(args: Any, cycle: int, source: Source) -> Any:
        server.log.append(f"play {args.mode}")
        sample = asyncio.run(module.generate(args, Sample(source.next), {"max_new_tokens": 99}))
        source.next += 1
        return types.SimpleNamespace(samples=[[sample]])

    made.modes = [
        Mode(name, Namespace(leg=99, version=str(cycle), mode=name), play, Source())
        for cycle, name in enumerate(settings.modes)
    ]
    return made


def test_modes_take_turns_and_each_round_follows_an_update(told: list[dict[str, Any]]) -> None:
    server, module = Server(), host_module()
    made = bench(server, module)
    first, second = made.cycle(None, 0), made.cycle(None, 1)
    assert [line for line in server.log if line.startswith("play")] == [
        "play sync",
        "play april",
        "play april",
        "play sync",
    ]
    assert server.log[:3] == ["staircase 8", "update 0", "play sync"]
    assert server.log.count("staircase 8") == server.log.count("staircase 160") == 2
    rounds = [event for event in told if event["event"] == "bench_round"]
    assert [(this["mode"], this["cycle"], this["trained"]) for this in rounds] == [
        ("sync", 0, [[0, 3]]),
        ("april", 0, [[0, 3]]),
        ("april", 1, [[1, 4]]),
        ("sync", 1, [[1, 4]]),
    ]
    assert rounds[0]["held"] == [[9, 3]]
    assert rounds[0]["prompt"] == 2
    assert [call[:4] for call in rounds[2]["calls"]] == [[1, 0, 4, 1]]
    # The host goes on with what the first mode trained.
    assert [output.samples[0][0].index for output in (first, second)] == [0, 1]


def test_a_response_of_another_length_is_a_failure(told: list[dict[str, Any]]) -> None:
    made = bench(Server(), host_module())
    made.modes[0].args.leg = 1
    with pytest.raises(AprilError, match="sync: response 0 has 1 tokens, the trace says 3"):
        made.cycle(None, 0)
