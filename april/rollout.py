"""The host's ``--rollout-function-path``: active partial rollouts around the host's own generation of a sample.

``generate_rollout`` runs a round of ours; ``generate_rollout_sync`` is the host's own function, observed. Evaluation is
the host's in both. Everything that happens to one sample (multimodal inputs, replay tensors, sample hooks, custom
generate functions, reward models) is the host's code.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from april import oversampling, samples
from april.config import AprilConfig, from_args
from april.core import Group, RoundPlan, RoundResult
from april.correction.lags import LaggedLength
from april.correction.settings import Correction, Method
from april.engine import HostEngine
from april.history import LengthHistory
from april.hosts.rollout import RolloutBindings, bindings
from april.legs import AutoBudget, leg_tokens
from april.oversampling import LengthSample
from april.ports import Verdict
from april.round import run_round
from april.staleness import AtCap, StalenessPolicy, VersionClock, capped_mask, parse_version
from april.telemetry import offpolicy
from april.telemetry.events import emit
from april.telemetry.observe import Observed
from april.telemetry.summary import round_fields, round_metrics, speculation_metrics
from april.telemetry.timeline import Timeline
from april.workers import Workers

logger = logging.getLogger(__name__)
T = TypeVar("T")


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """One round of active partial rollouts; the host's signature and return types.

    Raises UsageError for settings out of range and AprilError where the round cannot reach its target; what the host's
    own code raises goes through. What the round held is back in the data source then.
    """
    host = bindings()
    config = from_args(args)
    if evaluation:
        host.fresh_state(args)
        if config.interrupt.stays:
            # What was left in the engines goes on beside the evaluation.
            host.run(_workers(args).resume())
        return host.generate_rollout(args, rollout_id, data_source, evaluation=True)
    return host.run(_round(host, args, config, rollout_id, data_source))


def _workers(args: Any) -> Workers:
    return Workers(f"http://{args.sglang_router_ip}:{args.sglang_router_port}")


async def _round(host: RolloutBindings, args: Any, config: AprilConfig, rollout_id: int, data_source: Any) -> Any:
    started = time.time()
    await host.configure_engines(args)
    workers = _workers(args)
    if config.interrupt.stays:
        await workers.resume()
    clock = _kept(data_source, "clock", VersionClock)
    plan = await _plan(config, rollout_id, data_source, workers, clock)
    staleness = StalenessPolicy(config.staleness_cap, config.at_cap)
    gatherer = host.MetricGatherer()
    with Timeline() as line:
        engine = _kept(data_source, "engine", functools.partial(HostEngine, host))
        engine.begin(args, plan, workers, clock, line)
        try:
            judge = _judge(host, args, config, gatherer)
            result = await run_round(plan, staleness, HostSource(data_source), engine, judge)
            if config.interrupt.stays:
                result.stale_kv_tokens = await _stale(data_source, workers)
            data = _training_data(result, staleness, config.correction)
            flat = list(samples.leaves(data))
            await host.recompute_log_probs(args, flat, engine.state.sampling_params)
        finally:
            # The host's flag that stops queued samples must not outlive the round.
            engine.state.reset()
    rewards = [sample.get_reward_value(args) for sample in flat]
    fields = round_fields(result, rewards, [sample.response_length for sample in flat])
    emit("round", started=started, ended=time.time(), **fields)
    logger.info(
        "round %d at version %d: %d groups trained, %d partial and %d finished groups kept, %d dropped, drain %.1f s",
        *(rollout_id, plan.policy_version, len(result.trained), len(result.recycled)),
        *(len(result.surplus), len(result.dropped), result.drain_seconds),
    )
    _hooks(host, args, result, data, data_source)
    _learn(config, result, flat, data_source)
    trend = _kept(data_source, "length_trend", offpolicy.LengthTrend)
    metrics = {**gatherer.collect(), **round_metrics(result), **offpolicy.round_metrics(result, trend)}
    metrics.update(speculation_metrics(flat))
    if hasattr(data_source, "end_round"):
        data_source.end_round(rollout_id)
    # What the groups that wait cost: host memory, or disk; never the engines' KV.
    metrics["april/parked_bytes"] = getattr(getattr(data_source, "buffer", None), "bytes", 0)
    return host.RolloutFnTrainOutput(samples=data, metrics=metrics)


async def _plan(
    config: AprilConfig, rollout_id: int, data_source: Any, workers: Workers, clock: VersionClock
) -> RoundPlan:
    """What this round is to do, from the settings and from what earlier rounds were like."""
    over_sampling = config.over_sampling
    if config.auto_over_sampling:
        seen = _kept(data_source, "length_sample", LengthSample)
        capacity = await workers.capacity() if len(seen) >= oversampling.LEAST else None
        over_sampling = oversampling.groups_at_once(
            seen, config.target, config.group_size, capacity, config.staleness_cap
        )
    budget = config.leg_budget
    if budget is None:
        budget = _kept(data_source, "leg_budget", AutoBudget).budget
    return RoundPlan(
        rollout_id=rollout_id,
        policy_version=clock.observe(await workers.weight_version()),
        target=config.target,
        over_sampling=over_sampling,
        max_response_len=config.max_response_len,
        drain_deadline=config.drain_deadline,
        keep_partials=config.keep_partials,
        # A filter that rejects a whole epoch in a row would go on for ever.
        max_rejected=max(10 * over_sampling, len(getattr(data_source, "dataset", None) or ())),
        target_samples=config.target * config.group_size if config.stop_by_samples else None,
        min_group=config.least_group,
        leg_tokens=leg_tokens(budget, config.max_response_len),
        prioritise=config.prioritise,
        interrupt=config.interrupt,
    )


async def _stale(data_source: Any, workers: Workers) -> int:
    """KV tokens of older weights that the engines have gone on with since this was last asked."""
    total = sum(int(report["total_stale_kv_tokens"]) for report in await workers.paused())
    before = _kept(data_source, "stale_kv_tokens", int)
    data_source.stale_kv_tokens = total
    return max(0, total - before)


def _learn(config: AprilConfig, result: RoundResult, flat: Sequence[Any], data_source: Any) -> None:
    """What the next round's plan needs to know of this one."""
    history = _kept(data_source, "length_history", LengthHistory)
    for group in result.trained:
        history.observe(_prompt(group), group.tokens / len(group.members))
    if config.leg_budget is None:
        _kept(data_source, "leg_budget", AutoBudget).observe(result.spans)
    if config.auto_over_sampling:
        lengths = [int(sample.response_length) for sample in flat]
        prompts = [len(sample.tokens) - length for sample, length in zip(flat, lengths, strict=True)]
        _kept(data_source, "length_sample", LengthSample).observe(lengths, prompts)


def _prompt(group: Group) -> Any:
    return next(samples.leaves(samples.payload(group))).prompt


class HostSource:
    """A host's data source as the round's Source."""

    def __init__(self, data_source: Any) -> None:
        self._data_source = data_source
        self._history = _kept(data_source, "length_history", LengthHistory)

    def take(self, count: int) -> list[Group]:
        """The next groups, as the data source orders them, with what their prompts let expect."""
        groups = [samples.group_of(group) for group in self._data_source.get_samples(count)]
        for group in groups:
            group.expected = self._history.expected(_prompt(group))
        return groups

    def put(self, groups: Sequence[Group]) -> None:
        """Give groups back."""
        if groups:
            self._data_source.add_samples([samples.payload(group) for group in groups])


def _kept(data_source: Any, name: str, make: Callable[[], T]) -> T:
    """What lives as long as the data source does. Ours saves the clock, and what `april.learned` names."""
    if not hasattr(data_source, name):
        setattr(data_source, name, make())
    kept: T = getattr(data_source, name)
    return kept


def _judge(host: RolloutBindings, args: Any, config: AprilConfig, gatherer: Any) -> Callable[[Group, int], Verdict]:
    """The host's dynamic sampling filter."""
    path = args.dynamic_sampling_filter_path
    dynamic_filter = None if path is None else host.load_function(path)

    def judge(group: Group, remaining: int) -> Verdict:
        output = host.call_dynamic_filter(dynamic_filter, args, samples.payload(group))
        if not host.should_drop(output, remaining, config.target):
            return Verdict(True)
        gatherer.on_dynamic_filter_drop(reason=output.reason)
        return Verdict(False, output.reason or "filtered")

    return judge


def _training_data(result: RoundResult, staleness: StalenessPolicy, correction: Correction) -> list[Any]:
    """The trained groups in the host's form and order, checked; with tokens beyond the cap masked if so configured.

    Where the loss is to weigh tokens, the lengths of the responses know their lags.
    """
    version = result.plan.policy_version
    groups = sorted(result.trained, key=_first_index)
    for group in groups:
        for sample in samples.leaves(samples.payload(group)):
            legs = samples.legs_of(sample)
            if staleness.at_cap is AtCap.MASK and group.lag(version) > staleness.cap:
                sample.loss_mask = capped_mask(sample.loss_mask, legs, version, staleness.cap)
            if correction.method is Method.MASK and any(leg.policy_version < version for leg in legs):
                sample.loss_mask = capped_mask(sample.loss_mask, legs, version, 0)
            samples.check(sample, custom=True)
            if correction.weighs:
                sample.response_length = LaggedLength.of(legs, version)
        samples.forget_origin(samples.payload(group))
    return [samples.payload(group) for group in groups]


def _first_index(group: Group) -> int:
    index: int = next(samples.leaves(samples.payload(group))).index
    return index


def _hooks(host: RolloutBindings, args: Any, result: RoundResult, data: list[Any], data_source: Any) -> None:
    """The host's hooks on what will be trained, and on all that was judged in this round."""
    if args.rollout_sample_filter_path is not None:
        host.load_function(args.rollout_sample_filter_path)(args, data)
    if args.rollout_all_samples_process_path is not None:
        judged = sorted((*result.trained, *(drop.group for drop in result.dropped)), key=_first_index)
        process = host.load_function(args.rollout_all_samples_process_path)
        process(args, [samples.payload(group) for group in judged], data_source)


def generate_rollout_sync(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """The host's own rollout function, unchanged; a ``round`` event tells of it afterwards."""
    host = bindings()
    if evaluation:
        return host.generate_rollout(args, rollout_id, data_source, evaluation=True)
    started = time.time()
    with Timeline() as line, Observed(data_source, line) as seen:
        output = host.generate_rollout(args, rollout_id, data_source)
        spans = seen.spans()
    trained = list(samples.leaves(output.samples))
    versions = [version for sample in trained for version in map(parse_version, sample.weight_versions) if version]
    result = RoundResult(
        plan=RoundPlan(
            rollout_id=rollout_id,
            policy_version=max(versions, default=0),
            target=args.rollout_batch_size,
            over_sampling=seen.groups,
            max_response_len=args.rollout_max_response_len,
        ),
        trained=[samples.group_of(group) for group in output.samples],
        submitted=seen.groups,
        generated_tokens=max(seen.tokens(), sum(sample.response_length for sample in trained)),
        spans=spans,
    )
    fields = round_fields(
        result, [sample.get_reward_value(args) for sample in trained], [sample.response_length for sample in trained]
    )
    fields["wasted_tokens"] = result.generated_tokens - result.trained_tokens
    emit("round", started=started, ended=time.time(), **fields)
    return output
