"""Rows of speculation (`specrollout`): SGLang's plugin interface registers the algorithm, and these do the rest."""

from __future__ import annotations

from april.patches.core import Feature, Patch, Process, targets

VERSIONS = "==0.5.15.post1"
URL = "https://github.com/sgl-project/sglang/blob/v0.5.15.post1/python/sglang/srt"
SCHEDULER = frozenset({Process.SCHEDULER})
RUNNER = "sglang.srt.model_executor.model_runner:ModelRunner"


def _row(
    name: str, target: str, function: str, reason: str, until: str, processes: frozenset[Process] = SCHEDULER
) -> Patch:
    return Patch(
        name=f"speculation-{name}",
        feature=Feature.SPECULATION,
        targets=targets(target),
        versions=VERSIONS,
        apply=f"specrollout.hooks:{function}",
        around=True,
        processes=processes,
        reason=reason,
        link=f"{URL}/{target.partition(':')[0].removeprefix('sglang.srt.').replace('.', '/')}.py",
        until=until,
    )


ALGORITHM = Patch(
    name="speculation-algorithm",
    feature=Feature.SPECULATION,
    targets=targets("sglang.srt.speculative.spec_registry:_REGISTRY"),
    versions=VERSIONS,
    module="sglang.srt.speculative.spec_info",
    apply="april.patches.speculation:apply",
    processes=frozenset({Process.ENGINE}),
    reason="a host's engine actor checks the server's arguments before SGLang has loaded its plugins",
    link=f"{URL}/speculative/spec_registry.py",
    until="SGLang loads plugins when it parses arguments",
    exact=False,
)

SPECULATION_PATCHES: tuple[Patch, ...] = (
    _row(
        "slots",
        "sglang.srt.speculative.spec_utils:assign_req_to_token_pool_func",
        "assign_slots",
        "slots of speculation are assigned by a Triton kernel, which a CPU does not have",
        "SGLang assigns them with torch on a CPU",
    ),
    _row(
        "no-kv-copy",
        "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool._init_kv_copy_and_warmup",
        "no_kv_copy",
        "with speculation a Triton kernel that moves KV is warmed up; a chain moves none, and a CPU has no Triton",
        "SGLang asks the algorithm whether it moves KV",
    ),
    _row(
        "last-tokens",
        "sglang.srt.managers.overlap_utils:FutureMap._resolve_spec_extras",
        "resolve_tokens",
        "the last tokens of overlapped steps are read after recording a CUDA stream",
        "SGLang records streams on devices that have them",
    ),
    *(
        _row(
            f"weights-{path}",
            f"{RUNNER}.update_weights_from_{path}",
            "weights_updated",
            "the drafter is made anew after each weight update; SGLang does not tell a draft worker of every path",
            "SGLang has a hook that every weight update calls",
        )
        for path in ("disk", "tensor", "distributed", "ipc")
    ),
    _row(
        "resume",
        "sglang.srt.managers.scheduler_components.weight_updater:SchedulerWeightUpdaterManager.resume_memory_occupation",
        "memory_resumed",
        "what the drafter was made from has been away with the device's memory",
        "SGLang tells the draft worker",
    ),
    _row(
        "counts",
        "sglang.srt.managers.scheduler_components.batch_result_processor:"
        "SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        "count_requests",
        "plain steps are counted as cycles that accepted nothing",
        "SGLang counts drafts by the width of each result",
    ),
    _row(
        "finish",
        "sglang.srt.managers.schedule_batch:Req.update_finish_state",
        "finish_state",
        "a stop token inside an accepted run that reaches the length limit is not looked for",
        "SGLang looks for stops up to the limit first",
    ),
    _row(
        "meta-info",
        "sglang.srt.managers.tokenizer_manager:TokenizerManager._calculate_spec_decoding_metrics",
        "meta_info",
        "accept rates are divided by the server's longest draft",
        "SGLang counts drafts by the width of each result",
        frozenset({Process.TOKENIZER}),
    ),
    _row(
        "get-state",
        "sglang.srt.managers.scheduler:Scheduler.get_internal_state",
        "get_state",
        "reports of speculation in GET /server_info",
        "SGLang lets a worker add to the internal state",
    ),
    _row(
        "set-state",
        "sglang.srt.managers.scheduler:Scheduler.set_internal_state",
        "set_state",
        "speculation forced on or off in a running server",
        "SGLang lets a worker take part in setting the internal state",
    ),
)
