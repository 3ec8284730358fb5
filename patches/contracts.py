"""What the overlay calls in other packages and does not change: the counterpart of the table of patches.

A version on which one of them is different is refused until somebody has looked at the difference.
"""

from __future__ import annotations

from april.patches.core import Contract, Feature, targets
from april.patches.table import MILES_URL, MILES_VERSIONS, SGLANG_URL, SGLANG_VERSIONS, SLIME_URL, SLIME_VERSIONS
from april.patches.table_pause import SGLANG_VERSIONS as PAUSE_VERSIONS

SGLANG: tuple[Contract, ...] = (
    Contract(
        name="sglang-plugins",
        feature=Feature.HOST,
        targets=targets(
            "sglang.srt.plugins:load_plugins",
            "sglang.srt.plugins.hook_registry:HookRegistry.register",
            "sglang.srt.plugins.hook_registry:HookRegistry.apply_hooks",
        ),
        versions=SGLANG_VERSIONS,
        reason="loads our plugin in each of SGLang's processes and wraps the targets",
        link=f"{SGLANG_URL}/sglang/srt/plugins/__init__.py",
    ),
    Contract(
        name="sglang-cpu-engine",
        feature=Feature.CPU,
        targets=targets("sglang.srt.layers.attention.torch_native_backend:TorchNativeAttnBackend"),
        versions="==0.5.13.post1 | ==0.5.15.post1",
        reason="the server starts where there is no sgl_kernel, whose wheels are for GPUs: 0.5.12 and 0.5.23 import it",
        link=f"{SGLANG_URL}/sglang/srt/mem_cache/memory_pool_host.py",
        exact=False,
    ),
    Contract(
        name="engine-abort",
        feature=Feature.APRIL,
        targets=targets(
            "sglang.srt.entrypoints.http_server:abort_request",
            "sglang.srt.managers.io_struct:AbortReq",
            "sglang.srt.managers.tokenizer_manager:TokenizerManager.abort_request",
            "sglang.srt.managers.scheduler:Scheduler.abort_request",
        ),
        versions=SGLANG_VERSIONS,
        reason="ends a round: abort_all returns every running request with what it has",
        link=f"{SGLANG_URL}/sglang/srt/entrypoints/http_server.py",
    ),
    Contract(
        name="engine-loads",
        feature=Feature.APRIL,
        targets=targets("sglang.srt.entrypoints.v1_loads:get_loads"),
        versions=SGLANG_VERSIONS,
        reason="tells when an aborted engine idles",
        link=f"{SGLANG_URL}/sglang/srt/entrypoints/v1_loads.py",
    ),
    Contract(
        name="engine-weight-version",
        feature=Feature.APRIL,
        targets=targets("sglang.srt.entrypoints.http_server:model_info"),
        versions=SGLANG_VERSIONS,
        reason="tells which policy version generates",
        link=f"{SGLANG_URL}/sglang/srt/entrypoints/http_server.py",
    ),
    Contract(
        name="engine-token-versions",
        feature=Feature.INTERRUPT,
        targets=targets(
            "sglang.srt.managers.scheduler_components.output_streamer:_GenerationStreamAccumulator.accept",
            "sglang.srt.managers.tokenizer_manager:TokenizerManager._handle_batch_output",
        ),
        versions=PAUSE_VERSIONS,
        reason="carries the weight version of each token into an answer, piece by piece, and puts the pieces together",
        link=f"{SGLANG_URL}/sglang/srt/managers/tokenizer_manager.py",
    ),
    Contract(
        name="engine-retract",
        feature=Feature.INTERRUPT,
        targets=targets(
            "sglang.srt.managers.schedule_batch:retract_all",
            "sglang.srt.managers.schedule_batch:Req.reset_for_retract",
            "sglang.srt.mem_cache.common:evict_from_tree_cache",
        ),
        versions=PAUSE_VERSIONS,
        reason="frees the KV of requests that go back to the queue, which keep what they generated",
        link=f"{SGLANG_URL}/sglang/srt/managers/schedule_batch.py",
    ),
)


def _host(package: str, trainer: str, url: str, versions: str) -> tuple[Contract, ...]:
    """The two hosts share their names."""
    return (
        Contract(
            name=f"{package}-rollout",
            feature=Feature.APRIL,
            targets=targets(
                f"{package}.rollout.sglang_rollout:GenerateState",
                f"{package}.rollout.sglang_rollout:generate",
                f"{package}.rollout.sglang_rollout:generate_and_rm",
                f"{package}.rollout.sglang_rollout:generate_and_rm_group",
                f"{package}.rollout.sglang_rollout:generate_rollout",
                f"{package}.rollout.base_types:RolloutFnTrainOutput",
                f"{package}.utils.async_utils:run",
                f"{package}.utils.misc:load_function",
            ),
            versions=versions,
            reason="generates and rewards one group",
            link=url,
        ),
        Contract(
            name=f"{package}-samples",
            feature=Feature.APRIL,
            targets=targets(f"{package}.utils.types:Sample"),
            versions=versions,
            reason="the host's record of a response, which our bookkeeping extends",
            link=url,
        ),
        Contract(
            name=f"{package}-rewards",
            feature=Feature.APRIL,
            targets=targets(
                f"{package}.rollout.rm_hub:async_rm",
                f"{package}.rollout.rm_hub:batched_async_rm",
                f"{package}.rollout.filter_hub.base_types:call_dynamic_filter",
                f"{package}.rollout.filter_hub.base_types:MetricGatherer",
            ),
            versions=versions,
            reason="rewards, and the dynamic filters that drop groups",
            link=url,
        ),
        Contract(
            name=f"{package}-data-source",
            feature=Feature.APRIL,
            targets=targets(f"{package}.rollout.data_source:RolloutDataSource"),
            versions=versions,
            reason="the prompts, and the place in the epoch that is saved with a checkpoint",
            link=url,
        ),
        Contract(
            name=f"{package}-loss",
            feature=Feature.CORRECTION,
            targets=targets(
                f"{package}.backends.{trainer}.loss:policy_loss_function",
                f"{package}.backends.{trainer}.cp_utils:slice_log_prob_with_cp",
            ),
            versions=versions,
            reason="calls our weights through its hook, and slices a response over context-parallel ranks",
            link=url,
        ),
    )


SLIME: tuple[Contract, ...] = (
    Contract(
        name="slime-train",
        feature=Feature.HOST,
        targets=targets(
            "slime.utils.arguments:parse_args",
            "slime.ray.placement_group:create_training_models",
            "slime.ray.rollout:RolloutManager",
            "slime.ray.train_actor:TrainRayActor",
            "slime.backends.megatron_utils.actor:MegatronTrainRayActor",
            "slime.backends.sglang_utils.sglang_engine:SGLangEngine",
        ),
        versions=SLIME_VERSIONS,
        reason="the training loop and its actors, by which processes are recognised",
        link=f"{SLIME_URL}/train.py",
        exact=False,
    ),
    *_host("slime", "megatron_utils", f"{SLIME_URL}/slime/rollout/sglang_rollout.py", SLIME_VERSIONS),
)

MILES: tuple[Contract, ...] = (
    Contract(
        name="miles-train",
        feature=Feature.HOST,
        targets=targets(
            "miles.utils.arguments:parse_args",
            "miles.ray.placement_group:create_placement_groups",
            "miles.ray.placement_group:create_rollout_manager",
            "miles.ray.placement_group:create_training_models",
            "miles.utils.misc:should_run_periodic_action",
            "miles.utils.tracking_utils:init_tracking",
        ),
        versions=MILES_VERSIONS,
        reason="the functions that our training loop for miles calls: its wheel has none",
        link=MILES_URL,
    ),
    *_host("miles", "training_utils", MILES_URL, MILES_VERSIONS),
)

OTHERS: tuple[Contract, ...] = (
    Contract(
        name="megatron-layer-spec",
        feature=Feature.CPU,
        targets=targets(
            "megatron.core.models.gpt.gpt_layer_specs:get_gpt_layer_local_spec",
            "megatron.core.tensor_parallel.layers:ColumnParallelLinear",
            "megatron.core.transformer.dot_product_attention:DotProductAttention",
            "megatron.core.transformer.identity_op:IdentityOp",
        ),
        versions=">=0.14,<0.17",
        reason="the layers of a model on a CPU",
        link="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/models/gpt/gpt_layer_specs.py",
        exact=False,
    ),
    Contract(
        name="ray-setup-hook",
        feature=Feature.HOST,
        targets=targets(
            "ray._private.runtime_env.setup_hook:upload_worker_process_setup_hook_if_needed",
            "ray._private.runtime_env.setup_hook:load_and_execute_setup_hook",
        ),
        versions=">=2.47,<2.61",
        reason="arms the patches in every Ray worker",
        link="https://docs.ray.io/en/latest/ray-core/handling-dependencies.html",
        exact=False,
    ),
    Contract(
        name="memory-saver",
        feature=Feature.MEMORY,
        targets=targets(
            "torch_memory_saver:torch_memory_saver",
            "torch_memory_saver.entrypoint:TorchMemorySaver.region",
            "torch_memory_saver.entrypoint:TorchMemorySaver.cuda_graph",
            "torch_memory_saver.entrypoint:TorchMemorySaver.pause",
            "torch_memory_saver.entrypoint:TorchMemorySaver.resume",
            "torch_memory_saver.entrypoint:TorchMemorySaver.get_cpu_backup",
        ),
        versions=">=0.0.8,<0.0.11",
        reason="what the hosts and SGLang call to release device memory; slime reads the host backup",
        link="https://github.com/fzyzcjy/torch_memory_saver",
        exact=False,
    ),
)

CONTRACTS: tuple[Contract, ...] = SGLANG + SLIME + MILES + OTHERS
