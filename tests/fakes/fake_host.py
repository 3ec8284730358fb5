"""A host in a page: samples, a group call and rewards over ``FakeSglang``; what we rely on in slime and miles."""

from __future__ import annotations

import asyncio
import sys
import types
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fake_data import DataSource, Sample, Status
from fake_sglang import FakeSglang

from april import samples
from april.hosts.rollout import RolloutBindings


class GenerateState:
    """A singleton that keeps its first arguments, as the hosts' does."""

    _instances: dict[type, Any] = {}  # noqa: RUF012

    def __new__(cls, args: Any) -> Any:
        if cls not in GenerateState._instances:
            state = super().__new__(cls)
            state.args = args
            state.sampling_params = {"temperature": args.rollout_temperature, "max_new_tokens": args.max_len}
            state.semaphore = asyncio.Semaphore(args.concurrency)
            state.aborted = False
            GenerateState._instances[cls] = state
        return GenerateState._instances[cls]

    def reset(self) -> None:
        self.aborted = False


@dataclass
class TrainOutput:
    samples: list[Any]
    metrics: dict[str, Any] | None = None


class Gatherer:
    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()

    def on_dynamic_filter_drop(self, reason: str | None) -> None:
        self.dropped[str(reason)] += 1

    def collect(self) -> dict[str, Any]:
        return {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in self.dropped.items()}


class FakeHost:
    """``custom(args, sample, params)`` is a custom generate function, ``judge(args, sample)`` the reward."""

    def __init__(self, server: FakeSglang) -> None:
        self.client = httpx.AsyncClient(transport=server)
        self.judge: Any = self._judge
        self.judged: list[Any] = []
        self.evaluations: list[Any] = []
        self.recomputed: list[Any] = []

    async def _judge(self, args: Any, sample: Any) -> Any:
        return float(sample.response_length)

    async def async_rm(self, args: Any, sample: Any) -> Any:
        self.judged.append(sample)
        return await self.judge(args, sample)

    async def batched_async_rm(self, args: Any, samples: list[Any]) -> list[Any]:
        return list(await asyncio.gather(*(self.async_rm(args, sample) for sample in samples)))

    async def generate(self, args: Any, sample: Any, params: dict[str, Any]) -> Any:
        assert sample.status in (Status.PENDING, Status.ABORTED), f"the host refuses a sample that is {sample.status}"
        ids = sample.tokens or [1, int(sample.prompt)]
        params["max_new_tokens"] -= sample.response_length
        # As april.patches.requests has it.
        name = samples.request_of(sample).rid
        body = {"input_ids": ids, "sampling_params": params, **({"rid": name} if name else {})}
        answer = (await self.client.post(f"{args.router}/generate", json=body)).json()
        meta = answer["meta_info"]
        if name:
            samples.note_versions(sample, meta["token_versions"])
        pairs = meta["output_token_logprobs"]
        sample.tokens = ids + [pair[1] for pair in pairs]
        sample.response_length += len(pairs)
        sample.response += answer["text"]
        sample.rollout_log_probs = (sample.rollout_log_probs or []) + [pair[0] for pair in pairs]
        if sample.loss_mask is not None:
            sample.loss_mask = sample.loss_mask + [1] * len(pairs)
        sample.weight_versions.append(meta["weight_version"])
        names = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}
        sample.status = names[meta["finish_reason"]["type"]]
        return sample

    async def generate_and_rm(self, args: Any, sample: Any, params: dict[str, Any]) -> Any:
        if args.mask_offpolicy_in_partial_rollout and sample.response_length > 0:
            sample.loss_mask = [0] * sample.response_length
        if sample.status in (Status.COMPLETED, Status.TRUNCATED):
            assert args.group_rm or sample.reward is not None, "the host refuses an ended sample without a reward"
            return sample
        state = GenerateState(args)
        async with state.semaphore:
            if state.aborted:
                sample.status = Status.ABORTED
                return sample
            sample = await (args.custom or self.generate)(args, sample, params)
        parts = sample if isinstance(sample, list) else [sample]
        if args.group_rm or any(part.status is Status.ABORTED for part in parts):
            return sample
        for part in parts:
            if part.reward is None:
                part.reward = await self.async_rm(args, part)
        return sample

    async def generate_and_rm_group(
        self, args: Any, group: list[Any], sampling_params: Any, evaluation: bool
    ) -> list[Any]:
        state = GenerateState(args)
        if state.aborted:
            return group
        group = list(
            await asyncio.gather(*(self.generate_and_rm(args, sample, sampling_params.copy()) for sample in group))
        )
        if args.group_rm and not state.aborted:
            for sample, reward in zip(group, await self.batched_async_rm(args, group), strict=True):
                sample.reward = reward
        return group

    def generate_rollout(self, args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
        if evaluation:
            self.evaluations.append((rollout_id, GenerateState(args)))
            return "evaluated"
        groups = data_source.get_samples(args.rollout_batch_size)
        state = GenerateState(args)
        groups = asyncio.run(self._all(args, groups, state))
        return TrainOutput(groups, {"host": 1})

    async def _all(self, args: Any, groups: list[Any], state: Any) -> list[Any]:
        calls = (self.generate_and_rm_group(args, group, state.sampling_params, False) for group in groups)
        return list(await asyncio.gather(*calls))

    async def recompute(self, args: Any, samples: list[Any], sampling_params: Any) -> None:
        self.recomputed += samples

    async def configure(self, args: Any) -> None:
        pass

    def bindings(self, **changes: Any) -> RolloutBindings:
        values: dict[str, Any] = {
            "name": "fake",
            "Sample": Sample,
            "GenerateState": GenerateState,
            "RolloutFnTrainOutput": TrainOutput,
            "RolloutDataSource": DataSource,
            "MetricGatherer": Gatherer,
            "generate_rollout": self.generate_rollout,
            "generate_and_rm_group": self.generate_and_rm_group,
            "async_rm": self.async_rm,
            "batched_async_rm": self.batched_async_rm,
            "call_dynamic_filter": lambda fn, args, group: fn(args, group) if fn else types.SimpleNamespace(keep=True),
            "should_drop": lambda output, remaining, target: not output.keep,
            "load_function": lambda path: getattr(sys.modules["fake_hooks"], path),
            "run": asyncio.run,
            "configure_engines": self.configure,
            "recompute_log_probs": self.recompute,
            "resumes_by_text": False,
        }
        return RolloutBindings(**{**values, **changes})


def arguments(**changes: Any) -> Namespace:
    values: dict[str, Any] = {
        "rollout_temperature": 1.0,
        "max_len": 64,
        "rollout_max_response_len": 64,
        "concurrency": 1000,
        "router": "http://router",
        "sglang_router_ip": "router",
        "sglang_router_port": 80,
        "partial_rollout": True,
        "mask_offpolicy_in_partial_rollout": False,
        "group_rm": False,
        "custom": None,
        "custom_generate_function_path": None,
        "dynamic_sampling_filter_path": None,
        "rollout_sample_filter_path": None,
        "rollout_all_samples_process_path": None,
        "rollout_global_dataset": True,
        "rollout_shuffle": True,
        "rollout_batch_size": 2,
        "over_sampling_batch_size": 4,
        "n_samples_per_prompt": 2,
        "prompts": 16,
        "buffer_filter_path": None,
    }
    return Namespace(**{**values, **changes})


@dataclass
class World:
    """A fake host, its bindings and its server, in place of the real ones."""

    server: FakeSglang
    host: FakeHost
    bindings: RolloutBindings
    hooks: Any


def install(monkeypatch: pytest.MonkeyPatch, server: FakeSglang, **changes: Any) -> World:
    """Put a fake host under april.rollout and april.buffer."""
    import april.buffer.source
    import april.rollout

    GenerateState._instances.clear()
    host = FakeHost(server)
    bound = host.bindings(**changes)
    hooks = types.ModuleType("fake_hooks")
    monkeypatch.setitem(sys.modules, "fake_hooks", hooks)
    monkeypatch.setattr(april.rollout, "bindings", lambda: bound)
    monkeypatch.setattr(april.buffer.source, "bindings", lambda: bound)
    monkeypatch.setattr(april.workers.Workers.__init__, "__defaults__", (server,))
    return World(server, host, bound, hooks)


def source_for(args: Any) -> Any:
    """april's data source on the host of this process."""
    from april.buffer.source import partial_data_source

    return partial_data_source()(args)
