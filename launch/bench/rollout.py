"""The rollout function of a benchmark's run: each rollout of the host is one round of every mode, in turn.

One process, one server, one trace. A mode has its own arguments and data source, and plays its rounds with the rollout
function that a training run would use. Between rounds the policy version goes up and the prefix cache is emptied, as a
weight sync does both. Before each round the server's step time is measured. The results are events of the run.
"""

from __future__ import annotations

import copy
import functools
import importlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from april import rollout as april_rollout
from april import samples
from april.buffer.source import partial_data_source
from april.errors import AprilError
from april.hosts.rollout import RolloutBindings, bindings
from april.launch.bench import settings as settings_of
from april.launch.bench.forced import Forced
from april.launch.bench.server import Server
from april.launch.bench.settings import Settings
from april.telemetry.events import emit

CONTEXTS = (8, 160)
"""Prompts of the staircases, tokens, in turn: the time of a step depends on what it attends to."""


async def reward(args: Any, sample: Any, **more: Any) -> float:
    """The host's reward hook: judging costs nothing here."""
    del args, sample, more
    return 1.0


def host_source(args: Any) -> Any:
    """The host's ``--data-source-path``, for what it counts and logs: each mode has a source of its own.

    It also has the host's rollout module imported, and so patched, before the run is checked.
    """
    return _host_source(bindings(), args)


def _host_source(host: RolloutBindings, args: Any) -> Any:
    return importlib.import_module(f"{host.name}.rollout.data_source").RolloutDataSourceWithBuffer(args)


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """One round of each mode; returns what the first mode trained, for the host to go on with.

    Raises AprilError where a response did not get its length.
    """
    del data_source
    assert not evaluation
    return _bench(args.sglang_router_ip, args.sglang_router_port).cycle(args, rollout_id)


@functools.cache
def _bench(address: str, port: int) -> Bench:
    return Bench(bindings(), Server(f"http://{address}:{port}"), settings_of.of_this_run())


@dataclass(slots=True)
class Mode:
    """One mode's arguments, rollout function and data source."""

    name: str
    args: Any
    play: Any
    source: Any


@dataclass(slots=True)
class Bench:
    """The benchmark in the host's process."""

    host: RolloutBindings
    server: Server
    settings: Settings
    version: int = 0
    modes: list[Mode] = field(default_factory=list)
    forced: Forced | None = None

    def cycle(self, args: Any, cycle: int) -> Any:
        """The ``cycle``-th round of every mode."""
        if self.forced is None:
            self.forced = Forced(self.settings.lengths, lambda: self.version)
            self.forced.install(importlib.import_module(f"{self.host.name}.rollout.sglang_rollout"))
            self.modes = [self._mode(name, args) for name in self.settings.modes]
        self.version = cycle
        outputs = {}
        for position in range(len(self.modes)):
            mode = self.modes[(cycle + position) % len(self.modes)]
            # Before each round: other load on the machine comes and goes, and must slow both alike.
            self._calibrate(CONTEXTS[(cycle + position) % len(CONTEXTS)])
            outputs[mode.name] = self._round(mode, cycle)
        return outputs[self.settings.modes[0]]

    def _mode(self, name: str, args: Any) -> Mode:
        own = copy.copy(args)
        own.partial_rollout = name != "sync"
        own.over_sampling_batch_size = self.settings.batch if name == "sync" else self.settings.started
        if name == "april":
            return Mode(name, own, april_rollout.generate_rollout, partial_data_source()(own))
        return Mode(name, own, self.host.generate_rollout, _host_source(self.host, own))

    def _calibrate(self, prompt: int) -> None:
        stairs, prefill = self.host.run(self.server.staircase(prompt, self.settings.concurrency))
        emit("calibration", prompt=prompt, prefill=prefill, stairs=[asdict(stair) for stair in stairs])

    def _round(self, mode: Mode, cycle: int) -> Any:
        assert self.forced is not None
        self.host.run(self.server.update(self.version))
        self.host.fresh_state(mode.args)
        started = time.time()
        output = mode.play(mode.args, cycle, mode.source)
        ended = time.time()
        trained = list(samples.leaves(output.samples))
        self._check(mode, trained)
        emit(
            "bench_round",
            mode=mode.name,
            cycle=cycle,
            version=self.version,
            started=started,
            ended=ended,
            prompt=sum(len(sample.tokens) - sample.response_length for sample in trained) / len(trained),
            calls=[list(call) for call in map(_plain, self.forced.take())],
            trained=[[sample.index, int(sample.response_length)] for sample in trained],
            held=[[sample.index, sample.response_length] for sample in _held(mode.source)],
        )
        return output

    def _check(self, mode: Mode, trained: list[Any]) -> None:
        for sample in trained:
            if sample.response_length != self.settings.lengths[sample.index]:
                raise AprilError(
                    f"{mode.name}: response {sample.index} has {sample.response_length} tokens, the trace says "
                    f"{self.settings.lengths[sample.index]}"
                )


def _plain(call: Any) -> tuple[Any, ...]:
    return call.sample, call.before, call.after, call.version, call.started, call.ended


def _held(source: Any) -> Iterator[Any]:
    """The samples in a buffer, ours or the host's."""
    buffer = source.buffer
    groups = [samples.payload(group) for group in buffer.snapshot()] if hasattr(buffer, "snapshot") else buffer
    return samples.leaves(list(groups))
