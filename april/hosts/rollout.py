"""What april.rollout and april.buffer call of the host: bound by name, imported when first asked for.

The two hosts share their names for nearly all of it; what only one of them has is optional, and ``lacks`` names it.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from april.errors import UsageError

HOSTS = ("slime", "miles")
HOST = "APRIL_HOST"

Function = Callable[..., Any]
AsyncFunction = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class RolloutBindings:
    """The host's classes and functions; types are the host's, so Any.

    should_drop(output, remaining, target)
        Whether a dynamic filter's verdict drops a group.
    configure_engines, recompute_log_probs
        Steps of the host's own round that not every host has; they do nothing where they are missing.
    resumes_by_text
        The host's generate takes a response as resumed by its text, not its tokens.
    """

    name: str
    Sample: Any
    GenerateState: Any
    RolloutFnTrainOutput: Any
    RolloutDataSource: Any
    MetricGatherer: Any
    generate_rollout: Function
    generate_and_rm_group: AsyncFunction
    async_rm: AsyncFunction
    batched_async_rm: AsyncFunction
    call_dynamic_filter: Function
    should_drop: Callable[[Any, int, int], bool]
    load_function: Function
    run: Function
    configure_engines: AsyncFunction
    recompute_log_probs: AsyncFunction
    resumes_by_text: bool
    lacks: tuple[str, ...] = ()

    def fresh_state(self, args: Any) -> Any:
        """The host's GenerateState for these arguments.

        It is a singleton that keeps the arguments it was first made with: where they have changed it is made anew.
        """
        settings = _settings(args)
        state = self.GenerateState(args)
        if state.args is not args or getattr(state, "april_settings", settings) != settings:
            self.GenerateState._instances.pop(self.GenerateState)
            state = self.GenerateState(args)
        state.april_settings = settings
        return state


def _settings(args: Any) -> dict[str, str]:
    plain = (str, int, float, bool, list, tuple, type(None))
    return {name: repr(value) for name, value in vars(args).items() if isinstance(value, plain)}


def bindings() -> RolloutBindings:
    """The bindings of the host named by APRIL_HOST. Raises UsageError where that names none."""
    return _bind(os.environ.get(HOST, ""))


@functools.cache
def _bind(name: str) -> RolloutBindings:
    if name not in HOSTS:
        raise UsageError(f"{HOST} is {name!r}: it must be one of {', '.join(HOSTS)}; `april train` sets it")
    rollout = importlib.import_module(f"{name}.rollout.sglang_rollout")
    rewards = importlib.import_module(f"{name}.rollout.rm_hub")
    filters = importlib.import_module(f"{name}.rollout.filter_hub.base_types")
    base = importlib.import_module(f"{name}.rollout.base_types")
    misc = importlib.import_module(f"{name}.utils.misc")
    lacks = []
    should_drop = getattr(filters, "should_drop_dynamic_filter_output", None)
    if should_drop is None:
        lacks.append("keep_when_insufficient of dynamic filters")
    configure = getattr(getattr(rollout, "dumper_utils", None), "configure_sglang", None)
    if configure is None:
        lacks.append("dumping of engine inputs")
    recompute = getattr(rollout, "recompute_samples_rollout_logprobs_via_prefill", None)
    if recompute is None:
        lacks.append("log probabilities recomputed by prefill")
    return RolloutBindings(
        name=name,
        Sample=importlib.import_module(f"{name}.utils.types").Sample,
        GenerateState=rollout.GenerateState,
        RolloutFnTrainOutput=base.RolloutFnTrainOutput,
        RolloutDataSource=importlib.import_module(f"{name}.rollout.data_source").RolloutDataSource,
        MetricGatherer=filters.MetricGatherer,
        generate_rollout=rollout.generate_rollout,
        generate_and_rm_group=rollout.generate_and_rm_group,
        async_rm=rewards.async_rm,
        batched_async_rm=rewards.batched_async_rm,
        call_dynamic_filter=filters.call_dynamic_filter,
        should_drop=_drops if should_drop is None else _drops_with(should_drop),
        load_function=misc.load_function,
        run=importlib.import_module(f"{name}.utils.async_utils").run,
        configure_engines=configure or _nothing,
        recompute_log_probs=_nothing if recompute is None else _recompute_with(recompute, rollout.get_model_url),
        resumes_by_text=not hasattr(rollout, "_prepare_prompt_ids"),
        lacks=tuple(lacks),
    )


def _drops(output: Any, remaining: int, target: int) -> bool:
    return not output.keep


def _drops_with(should_drop: Function) -> Callable[[Any, int, int], bool]:
    def drops(output: Any, remaining: int, target: int) -> bool:
        return bool(should_drop(output, remaining_batch_size=remaining, target_data_size=target))

    return drops


async def _nothing(*args: Any) -> None:
    """A step that the host does not have."""


def _recompute_with(recompute: AsyncFunction, get_model_url: Function) -> AsyncFunction:
    async def recomputed(args: Any, samples: Iterable[Any], sampling_params: dict[str, Any]) -> None:
        url = get_model_url(args, "default")
        await recompute(args, list(samples), url=url, sampling_params=sampling_params)

    return recomputed
