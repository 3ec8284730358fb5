"""The table of patches: everything that the overlay changes in other packages at run time.

SGLang's targets are changed by its own plugin mechanism (``sglang_plugin.py``); all others when they are imported.
"""

from __future__ import annotations

from april.patches.core import Patch, Process

DRIVER, MANAGER, TRAINER = Process.DRIVER, Process.ROLLOUT_MANAGER, Process.TRAIN_ACTOR
ENGINE, SCHEDULER, TOKENIZER = Process.ENGINE, Process.SCHEDULER, Process.TOKENIZER
SLIME, MILES = frozenset({"slime"}), frozenset({"miles"})

PATCHES: tuple[Patch, ...] = (
    Patch(
        "torchvision-operators",
        "cpu",
        "torchvision.extension",
        "april.patches.cpu.torchvision_ops:apply",
        frozenset({MANAGER, TRAINER, ENGINE}),
        "torchvision's CUDA wheel cannot load its library beside a CPU torch, and then fails to import",
    ),
    Patch(
        "slime-accelerator",
        "cpu",
        "slime.utils.accelerator",
        "april.patches.cpu.accelerator:apply",
        frozenset({DRIVER, MANAGER, TRAINER, ENGINE}),
        "slime's accelerator registry has no CPU; registered through its own register_accelerator",
        hosts=SLIME,
    ),
    Patch(
        "trainer-cuda-redirect",
        "cpu",
        "{host}.ray.train_actor",
        "april.patches.cpu.cuda_redirect:apply",
        frozenset({TRAINER}),
        "Megatron calls torch.cuda directly",
        scoped=True,
    ),
    Patch(
        "engine-fork",
        "cpu",
        "{host}.backends.sglang_utils.sglang_engine",
        "april.patches.cpu.fork:apply",
        frozenset({ENGINE}),
        "SGLang spawns its processes, and each would import for 10 s what the engine actor has imported already",
        scoped=True,
    ),
    Patch(
        "slime-metrics",
        "telemetry",
        "slime.observability.logging_utils",
        "april.patches.telemetry:apply",
        frozenset({MANAGER, TRAINER}),
        "slime's metrics go to wandb and tensorboard only",
        hosts=SLIME,
    ),
    Patch(
        "miles-metrics",
        "telemetry",
        "miles.utils.tracking_utils",
        "april.patches.telemetry:apply",
        frozenset({MANAGER, TRAINER}),
        "miles' metrics go to wandb, tensorboard and mlflow only",
        hosts=MILES,
    ),
    Patch(
        "miles-server-arguments",
        "host",
        "miles.utils.arguments",
        "april.patches.miles.arguments:apply",
        frozenset({DRIVER}),
        "SGLang 0.5.15 renamed the parallel-size fields that miles 0.0.2 reads",
        hosts=MILES,
    ),
    Patch(
        "miles-process-group",
        "host",
        "miles.utils.distributed_utils",
        "april.patches.miles.process_group:apply",
        frozenset({TRAINER}),
        "miles compares torch versions as strings, so that torch 2.13 gets the arguments of torch 2.5",
        hosts=MILES,
    ),
    Patch(
        "miles-engine-endpoints",
        "host",
        "miles.backends.sglang_utils.sglang_engine",
        "april.patches.miles.engine:apply",
        frozenset({MANAGER, ENGINE}),
        "miles posts to /post_process_weights, which only its own fork of SGLang has",
        hosts=MILES,
    ),
    Patch(
        "miles-gloo-engine",
        "cpu",
        "miles.backends.sglang_utils.sglang_engine",
        "april.patches.miles.gloo:apply_engine",
        frozenset({ENGINE}),
        "miles asks the engine for an nccl group",
        hosts=MILES,
    ),
    Patch(
        "miles-gloo-trainer",
        "cpu",
        "miles.backends.megatron_utils.update_weight.update_weight_from_distributed.broadcast",
        "april.patches.miles.gloo:apply_trainer",
        frozenset({TRAINER}),
        "miles joins the weight update group with nccl",
        hosts=MILES,
    ),
    Patch(
        "miles-without-p2p",
        "host",
        "miles.backends.megatron_utils.update_weight",
        "april.patches.miles.p2p:apply",
        frozenset({TRAINER}),
        "miles imports its peer-to-peer transfer even where it is not used; it needs mooncake and miles' SGLang fork",
        hosts=MILES,
    ),
    Patch(
        "miles-hf-checkpoint",
        "cpu",
        "miles.backends.megatron_utils.checkpoint",
        "april.patches.miles.checkpoint:apply",
        frozenset({TRAINER}),
        "miles loads Hugging Face weights through megatron.bridge, which needs Transformer Engine",
        hosts=MILES,
    ),
)

SGLANG_PATCHES: tuple[Patch, ...] = (
    Patch(
        "decode-attention-batched",
        "cpu",
        "sglang.srt.layers.attention.torch_native_backend",
        "april.patches.cpu.decode_attention:forward_decode",
        frozenset({SCHEDULER}),
        "the torch_native backend decodes one sequence at a time in a Python loop",
    ),
    Patch(
        "sglang-receipts",
        "host",
        "sglang.srt.managers.scheduler",
        "april.patches.sglang_plugin:register",
        frozenset({SCHEDULER, TOKENIZER}),
        "SGLang starts without a hook whose target is missing; the process checks and reports by itself",
    ),
)


def wanted(host: str, device: str) -> list[Patch]:
    """The patches that a run on ``host`` and ``device`` needs, SGLang's included."""
    features = {"host", "telemetry"} | ({"cpu"} if device == "cpu" else set())
    return [patch for patch in PATCHES + SGLANG_PATCHES if host in patch.hosts and patch.feature in features]
