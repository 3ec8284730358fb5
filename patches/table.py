"""The table of patches: everything that the overlay changes in other packages.

SGLang's targets are changed by its own plugin mechanism (``sglang_plugin.py``); all others when they are imported.
``contracts.py`` is its counterpart: what we call and do not change.
"""

from __future__ import annotations

import os

from april.patches.core import Feature, Patch, Process, targets
from april.patches.table_pause import PAUSE_HOST_PATCHES, PAUSE_PATCHES
from april.patches.table_speculation import ALGORITHM, SPECULATION_PATCHES

DRIVER, MANAGER, TRAINER = Process.DRIVER, Process.ROLLOUT_MANAGER, Process.TRAIN_ACTOR
ENGINE, SCHEDULER, TOKENIZER = Process.ENGINE, Process.SCHEDULER, Process.TOKENIZER
SLIME, MILES = frozenset({"slime"}), frozenset({"miles"})
SLIME_URL = "https://github.com/THUDM/slime/blob/624b824"
MILES_URL = "https://github.com/radixark/miles"
MILES_VERSIONS = "==0.0.2"
SLIME_VERSIONS = ">=0.2.3,<=0.3.1"
SGLANG_VERSIONS = "==0.5.12.post1 | ==0.5.13.post1 | ==0.5.15.post1"
SGLANG_URL = "https://github.com/sgl-project/sglang/blob/v0.5.15.post1/python"

PATCHES: tuple[Patch, ...] = (
    Patch(
        name="torchvision-operators",
        feature=Feature.CPU,
        targets=targets("torchvision.extension:_has_ops"),
        versions=">=0.24,<0.29",
        apply="april.patches.cpu.torchvision_ops:apply",
        processes=frozenset({MANAGER, TRAINER, ENGINE}),
        reason="torchvision's CUDA wheel cannot load its library beside a CPU torch, and then fails to import",
        link="https://github.com/pytorch/vision/blob/v0.28.0/torchvision/_meta_registrations.py",
        until="torchvision's wheel imports without CUDA",
        exact=False,
    ),
    Patch(
        name="slime-accelerator",
        feature=Feature.CPU,
        targets=targets("slime.utils.accelerator:register_accelerator"),
        versions="==0.3.1",
        apply="april.patches.cpu.accelerator:apply",
        processes=frozenset({DRIVER, MANAGER, TRAINER, ENGINE}),
        reason="slime's accelerator registry has no CPU; registered through its own register_accelerator",
        link=f"{SLIME_URL}/slime/utils/accelerator/__init__.py",
        until="slime has a CPU accelerator",
        hosts=SLIME,
    ),
    Patch(
        name="trainer-cuda-redirect",
        feature=Feature.CPU,
        targets=targets("torch.cuda:set_device", "torch.cuda:synchronize", "torch.cuda:current_stream"),
        versions=">=2.9,<2.14",
        module="{host}.ray.train_actor",
        apply="april.patches.cpu.cuda_redirect:apply",
        processes=frozenset({TRAINER}),
        reason="Megatron calls torch.cuda directly",
        link="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/initialize.py",
        until="Megatron takes its device from an accelerator interface",
        exact=False,
        scoped=True,
    ),
    Patch(
        name="resumed-optimizer",
        feature=Feature.CPU,
        targets=targets("megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.state_dict"),
        versions=">=0.14,<0.17",
        apply="april.patches.cpu.optimizer:apply",
        processes=frozenset({TRAINER}),
        reason="Megatron cannot load a distributed optimizer whose Adam is PyTorch's: it has no step yet",
        link="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/optimizer/distrib_optimizer.py",
        until="Megatron reads the step of an optimizer that has not stepped",
        exact=False,
    ),
    Patch(
        name="tensor-sync-by-value",
        feature=Feature.CPU,
        targets=targets("sglang.srt.utils.common:MultiprocessingSerializer.serialize"),
        versions=SGLANG_VERSIONS,
        module="{host}.backends.megatron_utils.sglang",
        apply="april.patches.cpu.tensor_sync:apply",
        processes=frozenset({TRAINER}),
        reason="a colocated trainer sends weights by CUDA's inter-process handles, which tensors of a CPU have not",
        link=f"{SGLANG_URL}/sglang/srt/utils/common.py",
        until="SGLang serializes tensors of a CPU for any process",
        exact=False,
        scoped=True,
    ),
    Patch(
        name="engine-fork",
        feature=Feature.CPU,
        targets=targets("multiprocessing.context:DefaultContext.set_start_method"),
        versions=">=3.10,<3.14",
        module="{host}.backends.sglang_utils.sglang_engine",
        apply="april.patches.cpu.fork:apply",
        processes=frozenset({ENGINE}),
        reason="SGLang spawns its processes, and each would import for 10 s what the engine actor has imported already",
        link=f"{SGLANG_URL}/sglang/srt/entrypoints/engine.py",
        until="it is not worth the seconds",
        exact=False,
        optional=True,
        scoped=True,
    ),
    Patch(
        name="slime-metrics",
        feature=Feature.TELEMETRY,
        targets=targets("slime.observability.logging_utils:log | slime.utils.logging_utils:log"),
        versions=SLIME_VERSIONS,
        apply="april.patches.telemetry:apply",
        processes=frozenset({MANAGER, TRAINER}),
        reason="slime's metrics go to wandb and tensorboard only",
        link=f"{SLIME_URL}/slime/observability/logging_utils.py",
        until="slime has a hook for metrics",
        optional=True,
        hosts=SLIME,
    ),
    Patch(
        name="slime-requests",
        feature=Feature.APRIL,
        targets=targets("slime.rollout.sglang_rollout:generate", "slime.rollout.sglang_rollout:post"),
        versions=SLIME_VERSIONS,
        apply="april.patches.requests:apply",
        processes=frozenset({MANAGER}),
        reason="the tokens of a leg and its priority; up to 0.3.1 a resumed response asks for its full length again",
        link="https://github.com/THUDM/slime/issues/2260",
        until="slime has a hook on what a request asks for",
        hosts=SLIME,
    ),
    Patch(
        name="miles-requests",
        feature=Feature.APRIL,
        targets=targets("miles.rollout.sglang_rollout:generate", "miles.rollout.sglang_rollout:post"),
        versions=MILES_VERSIONS,
        apply="april.patches.requests:apply",
        processes=frozenset({MANAGER}),
        reason="the tokens of a leg and its priority",
        link=MILES_URL,
        until="miles has a hook on what a request asks for",
        hosts=MILES,
    ),
    Patch(
        name="miles-metrics",
        feature=Feature.TELEMETRY,
        targets=targets("miles.utils.tracking_utils:log"),
        versions=MILES_VERSIONS,
        apply="april.patches.telemetry:apply",
        processes=frozenset({MANAGER, TRAINER}),
        reason="miles' metrics go to wandb, tensorboard and mlflow only",
        link=MILES_URL,
        until="miles has a hook for metrics",
        optional=True,
        hosts=MILES,
    ),
    Patch(
        name="miles-server-arguments",
        feature=Feature.HOST,
        targets=targets("miles.utils.arguments:sglang_validate_args"),
        versions=MILES_VERSIONS,
        apply="april.patches.miles.arguments:apply",
        processes=frozenset({DRIVER}),
        reason="SGLang 0.5.15 renamed the parallel-size fields that miles 0.0.2 reads",
        link=MILES_URL,
        until="miles reads the names of SGLang 0.5.15",
        hosts=MILES,
    ),
    Patch(
        name="miles-colocated-arguments",
        feature=Feature.HOST,
        targets=targets("miles.utils.arguments:miles_validate_args"),
        versions=MILES_VERSIONS,
        apply="april.patches.miles.arguments:apply_colocated",
        processes=frozenset({DRIVER}),
        reason="SGLang 0.5.15 made one argument of the two about piecewise graphs that miles 0.0.2 reads (--colocate)",
        link=MILES_URL,
        until="miles reads the name of SGLang 0.5.15",
        hosts=MILES,
    ),
    Patch(
        name="miles-process-group",
        feature=Feature.HOST,
        targets=targets("miles.utils.distributed_utils:_new_process_group_helper"),
        versions=MILES_VERSIONS,
        apply="april.patches.miles.process_group:apply",
        processes=frozenset({TRAINER}),
        reason="miles compares torch versions as strings, so that torch 2.13 gets the arguments of torch 2.5",
        link=MILES_URL,
        until="miles compares versions as versions",
        hosts=MILES,
    ),
    Patch(
        name="miles-engine-endpoints",
        feature=Feature.HOST,
        targets=targets("miles.backends.sglang_utils.sglang_engine:SGLangEngine.post_process_weights"),
        versions=MILES_VERSIONS,
        apply="april.patches.miles.engine:apply",
        processes=frozenset({MANAGER, ENGINE}),
        reason="miles posts to /post_process_weights, which only its own fork of SGLang has",
        link=MILES_URL,
        until="miles asks whether the engine has the endpoint",
        hosts=MILES,
    ),
    Patch(
        name="miles-gloo-engine",
        feature=Feature.CPU,
        targets=targets("miles.backends.sglang_utils.sglang_engine:SGLangEngine.init_weights_update_group"),
        versions=MILES_VERSIONS,
        apply="april.patches.miles.gloo:apply_engine",
        processes=frozenset({ENGINE}),
        reason="miles asks the engine for an nccl group",
        link=MILES_URL,
        until="miles has a flag for the backend of weight updates",
        hosts=MILES,
    ),
    Patch(
        name="miles-gloo-trainer",
        feature=Feature.CPU,
        targets=targets(
            "miles.backends.megatron_utils.update_weight.update_weight_from_distributed.broadcast:init_process_group"
        ),
        versions=MILES_VERSIONS,
        apply="april.patches.miles.gloo:apply_trainer",
        processes=frozenset({TRAINER}),
        reason="miles joins the weight update group with nccl",
        link=MILES_URL,
        until="miles has a flag for the backend of weight updates",
        hosts=MILES,
    ),
    Patch(
        name="miles-without-p2p",
        feature=Feature.HOST,
        targets=targets(
            "miles.backends.megatron_utils.update_weight.update_weight_from_distributed.p2p:UpdateWeightP2P"
        ),
        versions=MILES_VERSIONS,
        module="miles.backends.megatron_utils.update_weight",
        apply="april.patches.miles.p2p:apply",
        processes=frozenset({TRAINER}),
        reason="miles imports its peer-to-peer transfer even where it is not used; it needs mooncake and a fork",
        link=MILES_URL,
        until="miles imports it where it is used",
        exact=False,
        hosts=MILES,
    ),
    Patch(
        name="miles-hf-checkpoint",
        feature=Feature.CPU,
        targets=targets("miles.backends.megatron_utils.checkpoint:_load_checkpoint_hf"),
        versions=MILES_VERSIONS,
        apply="april.patches.miles.checkpoint:apply",
        processes=frozenset({TRAINER}),
        reason="miles loads Hugging Face weights through megatron.bridge, which needs Transformer Engine",
        link=MILES_URL,
        until="megatron.bridge works without Transformer Engine",
        hosts=MILES,
    ),
    *PAUSE_HOST_PATCHES,
    ALGORITHM,
)

SGLANG_PATCHES: tuple[Patch, ...] = (
    Patch(
        name="decode-attention-batched",
        feature=Feature.CPU,
        targets=targets(
            "sglang.srt.layers.attention.torch_native_backend:TorchNativeAttnBackend._run_sdpa_forward_decode"
        ),
        versions=SGLANG_VERSIONS,
        apply="april.patches.cpu.decode_attention:forward_decode",
        around=True,
        processes=frozenset({SCHEDULER}),
        reason="the torch_native backend decodes one sequence at a time in a Python loop",
        link=f"{SGLANG_URL}/sglang/srt/layers/attention/torch_native_backend.py",
        until="torch_native batches its decoding, or the intel_amx backend needs no AMX",
        optional=True,
    ),
    Patch(
        name="streamed-logprobs",
        feature=Feature.HOST,
        targets=targets("sglang.srt.managers.scheduler_components.output_streamer:_GenerationStreamAccumulator.accept"),
        versions="==0.5.13.post1 | ==0.5.15.post1",
        apply="april.patches.streamer:accept",
        around=True,
        processes=frozenset({SCHEDULER}),
        reason="a request retracted before its first token loses the log probability of that token",
        link=f"{SGLANG_URL}/sglang/srt/managers/scheduler_components/output_streamer.py",
        until="SGLang sends nothing of a request without tokens",
        optional=True,
    ),
    Patch(
        name="sglang-receipts-scheduler",
        feature=Feature.HOST,
        targets=targets("sglang.srt.managers.scheduler:Scheduler.__init__"),
        versions=SGLANG_VERSIONS,
        apply="april.patches.sglang_plugin:report_scheduler",
        around=True,
        processes=frozenset({SCHEDULER}),
        reason="SGLang starts without a hook whose target is missing; the process checks and reports by itself",
        link=f"{SGLANG_URL}/sglang/srt/plugins/hook_registry.py",
        until="SGLang refuses to start without a hook that was asked for",
        exact=False,
    ),
    Patch(
        name="sglang-receipts-tokenizer",
        feature=Feature.HOST,
        targets=targets("sglang.srt.managers.tokenizer_manager:TokenizerManager.__init__"),
        versions=SGLANG_VERSIONS,
        apply="april.patches.sglang_plugin:report_tokenizer",
        around=True,
        processes=frozenset({TOKENIZER}),
        reason="as sglang-receipts-scheduler, in the process that serves HTTP",
        link=f"{SGLANG_URL}/sglang/srt/plugins/hook_registry.py",
        until="SGLang refuses to start without a hook that was asked for",
        exact=False,
    ),
    *SPECULATION_PATCHES,
    *PAUSE_PATCHES,
)


def of_this_run() -> list[Patch]:
    """The patches that the run around this process needs: ``APRIL_HOST``, ``APRIL_DEVICE``, ``APRIL_ROLLOUT``,
    ``APRIL_INTERRUPT`` and ``SPECROLLOUT``; a server by itself (no ``APRIL_HOST``) needs those of speculation, if it
    speculates."""
    host, device = os.environ.get("APRIL_HOST"), os.environ.get("APRIL_DEVICE", "")
    speculation = bool(os.environ.get("SPECROLLOUT"))
    if host is not None:
        stays = os.environ.get("APRIL_INTERRUPT", "abort") != "abort"
        return wanted(host, device, os.environ.get("APRIL_ROLLOUT") != "off", speculation, stays)
    features = {Feature.HOST, Feature.SPECULATION} | ({Feature.CPU} if device == "cpu" else set())
    return [patch for patch in SGLANG_PATCHES if patch.feature in features] if speculation else []


def wanted(
    host: str, device: str, april: bool = True, speculation: bool = False, interrupt: bool = False
) -> list[Patch]:
    """The patches that a run on ``host`` and ``device`` needs, SGLang's included; ``april``: with partial rollouts,
    ``interrupt``: whose requests stay in the engines over a weight update."""
    features = {Feature.HOST, Feature.TELEMETRY}
    features |= ({Feature.CPU} if device == "cpu" else set()) | ({Feature.APRIL} if april else set())
    features |= {Feature.SPECULATION} if speculation else set()
    features |= {Feature.INTERRUPT} if april and interrupt else set()
    return [patch for patch in PATCHES + SGLANG_PATCHES if host in patch.hosts and patch.feature in features]
