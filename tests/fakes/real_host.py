"""Run april over a real host's classes and functions, with a fake server: prints {check: null or what went wrong}.

Usage: real_host.py slime|miles. A process of its own, since importing a host takes long and the two do not mix.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
import tempfile
import traceback
import types
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from fake_sglang import FakeSglang

import april.workers
from april import samples
from april.core import versions_of
from april.hosts.rollout import RolloutBindings, bindings
from april.patches import boot
from april.patches.cpu import torchvision_ops

HOST = sys.argv[1]
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
CHECKS: list[Callable[[], None]] = []
ARGUMENTS: dict[str, Any] = {
    "hf_checkpoint": "none",
    "rollout_max_response_len": 64,
    "rollout_temperature": 1.0,
    "rollout_top_p": 1.0,
    "rollout_top_k": -1,
    "sglang_server_concurrency": 64,
    "sglang_dp_size": 1,
    "sglang_router_ip": "router",
    "sglang_router_port": 80,
    "rollout_num_gpus": 1,
    "rollout_num_gpus_per_engine": 1,
    "rollout_num_engines": 1,
    "partial_rollout": True,
    "rollout_global_dataset": True,
    "rollout_seed": 1,
    "rollout_batch_size": 2,
    "over_sampling_batch_size": 4,
    "n_samples_per_prompt": 2,
    "custom_rm_path": "real_hooks.judge",
    "prompt_data": "none",
    "miles_router_middleware_paths": [],
    "lora_rank": 0,
    "group_rm": False,
    "advantage_estimator": "grpo",
}


class Arguments(Namespace):
    """Whatever else the host asks for is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "april_")):
            raise AttributeError(name)
        return None


def arguments(**changes: Any) -> Any:
    return Arguments(**{**ARGUMENTS, **changes})


class Tokenizer:
    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [1, int(text)]


class Prompts:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.samples = [bindings().Sample(prompt=str(number), metadata={"task": number}) for number in range(12)]

    def __len__(self) -> int:
        return len(self.samples)


def install() -> tuple[FakeSglang, Any]:
    """The fake server, tokenizer, dataset and hooks under the real host."""
    server = FakeSglang(lambda ids: (3, 40, 5, 50)[ids[1] % 4])
    rollout = importlib.import_module(f"{HOST}.rollout.sglang_rollout")
    source = importlib.import_module(f"{HOST}.rollout.data_source")
    importlib.import_module(f"{HOST}.utils.http_utils")._http_client = httpx.AsyncClient(transport=server)
    for module in (rollout, source):
        module.load_tokenizer = lambda *args, **kwargs: Tokenizer()
        module.load_processor = lambda *args, **kwargs: None
    source.Dataset = Prompts
    april.workers.Workers.__init__.__defaults__ = (server,)

    async def judge(args: Any, sample: Any, **kwargs: Any) -> Any:
        if isinstance(sample, list):
            return [await judge(args, one) for one in sample]
        return float(sample.response_length)

    async def fan(args: Any, sample: Any, params: dict[str, Any]) -> Any:
        whole = await rollout.generate(args, sample, params)
        whole.rollout_id = whole.index
        return [whole, copy.deepcopy(whole)]

    hooks = types.ModuleType("real_hooks")
    hooks.judge, hooks.fan = judge, fan  # type: ignore[attr-defined]
    sys.modules["real_hooks"] = hooks
    return server, hooks


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def source_for(args: Any) -> Any:
    from april.buffer import PartialDataSource

    return PartialDataSource(args)


def play(args: Any, rollout_id: int, source: Any) -> Any:
    from april.rollout import generate_rollout

    return generate_rollout(args, rollout_id, source)


def held(source: Any) -> list[Any]:
    return [sample for group in source.buffer.snapshot() for sample in samples.leaves(samples.payload(group))]


def one_partial(**changes: Any) -> tuple[Any, Any, Any]:
    """One resumed response: arguments, source and the response after its first leg."""
    args = arguments(rollout_batch_size=1, over_sampling_batch_size=2, n_samples_per_prompt=1, **changes)
    source = source_for(args)
    play(args, 0, source)
    args.over_sampling_batch_size = 1
    return args, source, held(source)[0]


@check
def rounds_keep_every_token() -> None:
    args = arguments()
    source, trained = source_for(args), []
    for rollout_id in range(4):
        SERVER.weight_version = str(rollout_id + 1)
        output = play(args, rollout_id, source)
        assert len(output.samples) == 2
        assert output.metrics["april/wasted_tokens"] == 0
        for sample in samples.leaves([output.samples, held(source)]):
            length = sample.response_length
            assert sample.tokens == [1, int(sample.prompt), *range(1002, 1002 + length)]
            assert len(sample.response) == length
            samples.check(sample)
        assert all(sample.reward == sample.response_length for sample in samples.leaves(output.samples))
        trained += [group[0].group_index for group in output.samples]
    assert output.metrics["april/partials_resumed"] > 0
    assert output.metrics["april/parked_bytes"] == source.buffer.bytes
    assert sorted([*trained, *{sample.group_index for sample in held(source)}]) == list(
        range(source.sample_group_index)
    )


@check
def a_leg_asks_for_what_is_left() -> None:
    args, source, partial = one_partial()
    tokens, length = list(partial.tokens), partial.response_length
    SERVER.requests.clear()
    play(args, 1, source)
    [request] = SERVER.requests
    assert request["input_ids"] == tokens
    assert request["sampling_params"]["max_new_tokens"] == 64 - length


@check
def without_tokens_left_it_is_truncated_and_rewarded() -> None:
    args, source, partial = one_partial()
    args.rollout_max_response_len = partial.response_length
    SERVER.requests.clear()
    [[sample]] = play(args, 1, source).samples
    assert SERVER.requests == []
    assert (sample.status.value, sample.reward) == ("truncated", float(sample.response_length))


@check
def a_response_without_text_is_resumed() -> None:
    SERVER.text = ""
    try:
        args, source, partial = one_partial()
        tokens = list(partial.tokens)
        SERVER.requests.clear()
        [[sample]] = play(args, 1, source).samples
    finally:
        SERVER.text = "x"
    assert SERVER.requests[0]["input_ids"] == tokens
    assert (sample.response, sample.response_length) == ("", 40)


@check
def a_finished_sibling_keeps_its_mask() -> None:
    seen: set[int] = set()

    def length(ids: list[int]) -> int:
        first = ids[1] not in seen
        seen.add(ids[1])
        return 6 if ids[1] == 0 else (2 if first else 40)

    before, SERVER.length = SERVER.length, length
    try:
        args = arguments(rollout_batch_size=1, over_sampling_batch_size=2, mask_offpolicy_in_partial_rollout=True)
        source = source_for(args)
        play(args, 0, source)
        ended, partial = held(source)
        was, resumed = copy.deepcopy(ended), partial.response_length
        args.over_sampling_batch_size = 1
        [[first, second]] = play(args, 1, source).samples
    finally:
        SERVER.length = before
    assert (first.tokens, first.loss_mask, first.reward) == (was.tokens, was.loss_mask, was.reward)
    assert second.loss_mask == [0] * resumed + [1] * (40 - resumed)


@check
def a_group_reward_reaches_all_members() -> None:
    args = arguments(group_rm=True)
    source = source_for(args)
    for rollout_id in range(3):
        output = play(args, rollout_id, source)
        assert all(sample.reward == sample.response_length for sample in samples.leaves(output.samples))


def annotation_check() -> Callable[[Any], None] | None:
    """slime's own check of fan-out samples; releases keep it in different places, the oldest has none."""
    try:
        module = importlib.import_module("slime.observability.rollout_data_utils")
    except ModuleNotFoundError:
        module = importlib.import_module("slime.ray.rollout")
    names = ("validate_rollout_id_annotated", "_validate_rollout_id_annotated", "_validate_group_id_annotated")
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


@check
def fan_out_survives() -> None:
    args = arguments(custom_generate_function_path="real_hooks.fan")
    source = source_for(args)
    for rollout_id in range(3):
        output = play(args, rollout_id, source)
        for sample in samples.leaves(output.samples):
            assert sample.reward == sample.response_length
            samples.check(sample)
        if HOST == "slime" and (validate := annotation_check()):
            validate(output.samples)


@check
def a_tool_calling_function_is_resumed() -> None:
    """The example of docs/multi-turn.md: a turn ends after 40 or 50 tokens, then the tool answers, then it ends."""
    sys.path.insert(0, str(EXAMPLES))
    calculator = importlib.import_module("calculator")
    calculator.call_of = lambda text: "1+1" if len(text) >= 40 and not text.endswith("2") else None
    args = arguments(custom_generate_function_path="calculator.generate", rollout_max_response_len=80)
    source, seen, cut = source_for(args), 0, 0
    for rollout_id in range(5):
        SERVER.weight_version = str(rollout_id + 1)
        output = play(args, rollout_id, source)
        assert output.metrics["april/wasted_tokens"] == 0
        for sample in samples.leaves([output.samples, held(source)]):
            samples.check(sample, custom=True)
            ended = sample.status.value == "completed"
            answers = [
                token for token, mask in zip(sample.tokens[2:], sample.loss_mask or [], strict=False) if not mask
            ]
            assert answers in ([], [1, 2]), "the tool answered once"
            seen += ended and answers == [1, 2]
            cut += bool(not ended and sample.response_length)
        for sample in samples.leaves(output.samples):
            assert sample.metadata["turns"] == (2 if 0 in sample.loss_mask else 1)
    assert seen
    assert cut


@check
def the_second_arguments_take_effect() -> None:
    play(arguments(), 0, source_for(arguments()))
    play(arguments(rollout_temperature=0.25), 0, source_for(arguments()))
    assert SERVER.requests[-1]["sampling_params"]["temperature"] == 0.25


@check
def the_dynamic_filter_of_the_host() -> None:
    path = f"{HOST}.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
    args = arguments(dynamic_sampling_filter_path=path, n_samples_per_prompt=2)
    counts: dict[int, int] = {}

    def length(ids: list[int]) -> int:
        counts[ids[1]] = counts.get(ids[1], 0) + 1
        return 4 if ids[1] == 0 else 3 + counts[ids[1]]

    before, SERVER.length = SERVER.length, length
    try:
        output = play(args, 0, source_for(args))
    finally:
        SERVER.length = before
    assert output.metrics["rollout/dynamic_filter/drop_zero_std_4.0"] == 1
    assert len(output.samples) == 2


@check
def a_checkpoint_keeps_the_partials() -> None:
    with tempfile.TemporaryDirectory() as folder:
        args = arguments(save=folder, load=folder)
        source = source_for(args)
        play(args, 0, source)
        source.save(0)
        before = [sample.to_dict() for sample in held(source)]
        source.buffer.close()
        restored = source_for(args)
        restored.load(0)
        assert [sample.to_dict() for sample in held(restored)] == before
        assert restored.sample_offset == source.sample_offset > 0
        assert len(play(args, 1, restored).samples) == 2


@check
def sync_is_the_hosts_own_function() -> None:
    from april.rollout import generate_rollout_sync

    args = arguments(over_sampling_batch_size=2)
    ours = generate_rollout_sync(args, 0, source_for(args))
    theirs = bindings().generate_rollout(args, 0, source_for(args))
    for a, b in zip(samples.leaves(ours.samples), samples.leaves(theirs.samples), strict=True):
        assert (a.tokens, a.reward, a.rollout_log_probs) == (b.tokens, b.reward, b.rollout_log_probs)


@check
def requests_outlive_rounds() -> None:
    args, aborts = arguments(april_interrupt="retract"), SERVER.aborts
    source, crossed = source_for(args), 0
    SERVER.written.clear()
    for rollout_id in range(4):
        SERVER.weight_version = str(rollout_id + 1)
        output = play(args, rollout_id, source)
        assert output.metrics["april/wasted_tokens"] == 0
        wrote = {tuple(map(int, versions)) for versions in SERVER.written.values()}
        for sample in samples.leaves(output.samples):
            samples.check(sample)
            versions = versions_of(samples.legs_of(sample))
            assert tuple(versions) in wrote
            crossed += len(set(versions)) > 1
    assert crossed > 0
    assert SERVER.aborts == aborts


def main() -> None:
    found: dict[str, str | None] = {}
    for function in CHECKS:
        try:
            function()
            found[function.__name__] = None
        except Exception:
            found[function.__name__] = traceback.format_exc()
    print(json.dumps({"lacks": BOUND.lacks, "checks": found}))


if __name__ == "__main__":
    os.environ["APRIL_HOST"] = HOST
    os.environ.setdefault("APRIL_DEVICE", "cuda")
    torchvision_ops.arm()
    boot.install()
    BOUND: RolloutBindings = bindings()
    SERVER, _ = install()
    main()
    sys.stdout.flush()
    os._exit(0)
