"""What contradicts itself in a run's flags: found in milliseconds, without the host.

Each rule is a function of the run that returns what is wrong, in one line, or None.
"""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from april import config
from april.errors import UsageError
from april.launch.arguments import UsageParser
from april.launch.run import flags as flag_words
from april.launch.run.resolve import Launch, whole
from april.launch.train import prometheus
from specrollout import settings

EXPANDABLE = "expandable_segments:true"
PROMETHEUS = prometheus.FLAG.removeprefix("--")
"""Read by april train itself, in every mode."""
ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def check(launch: Launch) -> None:
    """Every rule.

    Raises:
        UsageError: for the first that does not hold.
    """
    for rule in RULES:
        if said := rule(launch):
            raise UsageError(said)
    _our_settings(launch)


def _our_settings(launch: Launch) -> None:
    """Our own flags as the processes of the run will read them: ranges, and what they ask of the host's."""
    ours = {name: value for name, value in launch.flags.items() if name.startswith(("april-", "specrollout"))}
    ours.pop(PROMETHEUS, None)
    if launch.mode.spec:
        ours["specrollout"] = "on"
    args = our_parser().parse_args(flag_words.words(ours))
    theirs = {name.replace("-", "_"): value for name, value in launch.flags.items() if name not in ours}
    read = Namespace(
        **{
            **vars(args),
            **theirs,
            "partial_rollout": launch.mode.april or bool(theirs.get("partial_rollout")),
            "rollout_batch_size": whole(launch.flags, "rollout-batch-size"),
            "over_sampling_batch_size": whole(launch.flags, "over-sampling-batch-size") or None,
            "n_samples_per_prompt": whole(launch.flags, "n-samples-per-prompt"),
            "rollout_max_response_len": whole(launch.flags, "rollout-max-response-len"),
            # april train sets it itself where it is needed
            "custom_reward_post_process_path": theirs.get("custom_reward_post_process_path") or config.REWARDS,
            "april_async": launch.asynchronous,
        }
    )
    config.from_args(read)
    settings.from_args(read)


@functools.cache
def our_parser() -> UsageParser:
    """A parser of our flags that reach the workers."""
    parser = UsageParser(prog="april launch", allow_abbrev=False, add_help=False)
    config.add_arguments(parser)
    settings.add_arguments(parser)
    return parser


def _speculation(launch: Launch) -> str | None:
    theirs = next((name for name in launch.flags if name.startswith("sglang-speculative-")), None)
    if launch.mode.spec and theirs:
        return (
            f"--mode {launch.mode.name} speculates with {settings.ALGORITHM}, --{theirs} is for an algorithm of "
            "SGLang's own: drop one of them"
        )
    given = next((name for name in launch.flags if name.startswith("specrollout-")), None)
    if given and not launch.mode.spec:
        return f"--{given} has no effect with --mode {launch.mode.name}: use --mode spec or april+spec"
    return None


def _rollout_function(launch: Launch) -> str | None:
    path = launch.flags.get("rollout-function-path")
    if path is None or str(path).startswith("april."):
        return None
    return (
        f"--rollout-function-path {path}: april train's own stands in its place; use --custom-generate-function-path, "
        "or train by slime itself"
    )


def _needs_april(launch: Launch) -> str | None:
    """Settings that mean something for partial rollouts only."""
    if launch.mode.april:
        return None
    paused = launch.flags.get("pause-generation-mode")
    if paused in ("retract", "in_place"):
        return f"--pause-generation-mode {paused} keeps requests across weight updates: use --mode april or april+spec"
    given = next((name for name in launch.flags if name.startswith("april-") and name != PROMETHEUS), None)
    if given:
        return f"--{given} has no effect with --mode {launch.mode.name}: use --mode april or april+spec"
    return None


def _asynchronous(launch: Launch) -> str | None:
    if launch.asynchronous and launch.flags.get("colocate"):
        return "--async with --colocate: trainer and engines work at the same time, so they cannot share devices"
    return None


def _saver(launch: Launch) -> str | None:
    """What releases memory between the phases must be able to."""
    if not offloads(launch.flags):
        return None
    if launch.flags.get("memory-backend") == "tms" and launch.vendor == "cpu":
        return "--memory-backend tms: torch_memory_saver has no library for a CPU; use --memory-backend april"
    for variable in ALLOCATORS:
        if EXPANDABLE in launch.environment.get(variable, "").replace(" ", "").lower():
            return (
                f"{variable} turns on expandable segments, of which no memory saver can release anything: unset it, or "
                "use --no-offload-train --no-offload-rollout"
            )
    return None


def offloads(flags: Mapping[str, Any]) -> bool:
    """Whether memory is released between the phases; sharing devices asks for it unless both sides refuse."""
    if any(flags.get(name) for name in ("offload", "offload-train", "offload-rollout")):
        return True
    refused = flags.get("no-offload-train") and flags.get("no-offload-rollout")
    return bool(flags.get("colocate")) and not refused


def _batches(launch: Launch) -> str | None:
    flags = launch.flags
    made = whole(flags, "rollout-batch-size") * whole(flags, "n-samples-per-prompt")
    trained, steps = whole(flags, "global-batch-size"), whole(flags, "num-steps-per-rollout")
    if steps and trained * steps != made:
        return (
            f"--global-batch-size {trained} with --num-steps-per-rollout {steps}: a rollout makes {made} samples; "
            "leave one of the two out"
        )
    if made % trained:
        return (
            f"--global-batch-size {trained} does not divide the {made} samples of a rollout (--rollout-batch-size x "
            "--n-samples-per-prompt)"
        )
    replicas = world(launch) // _shards(flags)
    if trained % max(1, replicas):
        return f"--global-batch-size {trained} is no multiple of the {replicas} data-parallel replicas of the trainer"
    return None


def world(launch: Launch) -> int:
    """The trainer's devices."""
    return whole(launch.flags, "actor-num-nodes", 1) * whole(launch.flags, "actor-num-gpus-per-node", 1)


def _shards(flags: Mapping[str, Any]) -> int:
    """Devices that hold one replica of the trainer's model."""
    return (
        whole(flags, "tensor-model-parallel-size", 1)
        * whole(flags, "pipeline-model-parallel-size", 1)
        * whole(flags, "context-parallel-size", 1)
    )


def _trainer_shape(launch: Launch) -> str | None:
    flags, model = launch.flags, launch.architecture
    tensor, pipeline = whole(flags, "tensor-model-parallel-size", 1), whole(flags, "pipeline-model-parallel-size", 1)
    heads, groups, layers = (
        whole(flags, name, 1) for name in ("num-attention-heads", "num-query-groups", "num-layers")
    )
    if heads % tensor:
        return f"--tensor-model-parallel-size {tensor} does not divide the model's {heads} attention heads"
    if groups % tensor and tensor % groups:
        return f"--tensor-model-parallel-size {tensor} does not fit the model's {groups} groups of keys and values"
    if layers % pipeline and "decoder-last-pipeline-num-layers" not in flags:
        return f"--pipeline-model-parallel-size {pipeline} does not divide the model's {layers} layers"
    if world(launch) % _shards(flags):
        return (
            f"--tensor-model-parallel-size x --pipeline-model-parallel-size x --context-parallel-size, "
            f"{_shards(flags)}, does not divide the trainer's {world(launch)} devices"
        )
    longest, most = whole(flags, "rollout-max-response-len"), int(model.get("max_position_embeddings", 0))
    if most and longest >= most:
        return f"--rollout-max-response-len {longest}: {launch.model.name} has {most} positions, prompt included"
    return None


def _engine_shape(launch: Launch) -> str | None:
    flags = launch.flags
    each = whole(flags, "rollout-num-gpus-per-engine", 1)
    total = whole(flags, "rollout-num-gpus", world(launch))
    heads, own = whole(flags, "num-attention-heads", 1), each // whole(flags, "sglang-pipeline-parallel-size", 1)
    if total % each:
        return f"--rollout-num-gpus-per-engine {each} does not divide the engines' {total} devices"
    if not flags.get("sglang-enable-dp-attention") and heads % max(1, own):
        return f"--rollout-num-gpus-per-engine {each} does not divide the model's {heads} attention heads"
    if each > launch.gpus_per_node and each % launch.gpus_per_node:
        return f"--rollout-num-gpus-per-engine {each}: more than a node, and no multiple of its {launch.gpus_per_node}"
    return None


def devices(launch: Launch) -> int:
    """The devices of the run in all."""
    engines = 0 if launch.flags.get("colocate") else whole(launch.flags, "rollout-num-gpus", 0)
    return world(launch) + engines


def _enough_devices(launch: Launch) -> str | None:
    has = launch.nodes * launch.gpus_per_node
    if devices(launch) <= has:
        return None
    return (
        f"trainer and engines want {devices(launch)} devices, {launch.nodes} x {launch.hardware.name} has {has}: lower "
        "--actor-num-gpus-per-node or --rollout-num-gpus, raise --nodes, or share them (--colocate)"
    )


def _losses(launch: Launch) -> str | None:
    flags = launch.flags
    reward, loss = (number(flags, name) for name in ("kl-coef", "kl-loss-coef"))
    if reward and loss:
        return f"--kl-coef {reward:g} and --kl-loss-coef {loss:g}: the KL is in the reward or in the loss, not in both"
    estimator = str(flags.get("advantage-estimator"))
    if estimator.startswith("reinforce_plus_plus") and not flags.get("normalize-advantages"):
        return f"--advantage-estimator {estimator} needs --normalize-advantages"
    if (temperature := number(flags, "rollout-temperature")) is not None and temperature <= 0:
        return f"--rollout-temperature {temperature:g}: it must be above 0, else there is nothing to explore"
    return None


def _lengths_of_the_run(launch: Launch) -> str | None:
    flags = launch.flags
    if "num-rollout" not in flags and "num-epoch" not in flags:
        return "how long to train is missing: give --set num-rollout=N or --set num-epoch=N"
    if "save-interval" in flags and "save" not in flags:
        return "--save-interval without --save: give --set save=DIR, or --set save-interval=null"
    if "eval-interval" in flags and not {"eval-prompt-data", "eval-config"}.intersection(flags):
        return "--eval-interval without --eval-prompt-data NAME FILE: there is nothing to evaluate on"
    return None


def number(flags: Mapping[str, Any], name: str) -> float | None:
    """A flag that is a number, or None where it is not given.

    Raises:
        UsageError: when it is something else.
    """
    value = flags.get(name)
    if value is None:
        return None
    try:
        return float(str(value))
    except ValueError:
        raise UsageError(f"--{name} is {value}: it must be a number") from None


RULES: tuple[Callable[[Launch], str | None], ...] = (
    _speculation,
    _rollout_function,
    _needs_april,
    _asynchronous,
    _saver,
    _trainer_shape,
    _engine_shape,
    _enough_devices,
    _batches,
    _losses,
    _lengths_of_the_run,
)
