"""The rows of runs whose requests stay in the engines over a weight update (``--april-interrupt retract|inplace``)."""

from __future__ import annotations

from april.patches.core import Feature, Patch, Process, targets

SGLANG_VERSIONS = "==0.5.13.post1 | ==0.5.15.post1"
"""0.5.12 sends what a request says about its tokens (``customized_info``) for the last piece of an answer only."""
SGLANG_URL = "https://github.com/sgl-project/sglang"
SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"

SLIME_VERSIONS = ">=0.2.3,<=0.3.1"
ENGINE = "backends.sglang_utils.sglang_engine:SGLangEngine"


def _host(name: str, versions: str, url: str) -> Patch:
    return Patch(
        name=f"{name}-pause",
        feature=Feature.INTERRUPT,
        targets=targets(f"{name}.{ENGINE}.pause_generation", f"{name}.{ENGINE}.continue_generation"),
        versions=versions,
        apply="april.patches.pause.hosts:apply",
        processes=frozenset({Process.ENGINE}),
        reason=f"{name} pauses around its weight update in a mode of its own, and lets an offloaded engine go on",
        link=url,
        until=f"{name} takes the mode of the pause from a flag, and goes on when the KV cache is back",
        hosts=frozenset({name}),
    )


PAUSE_HOST_PATCHES: tuple[Patch, ...] = (
    _host(
        "slime",
        SLIME_VERSIONS,
        "https://github.com/THUDM/slime/blob/624b824/slime/backends/sglang_utils/sglang_engine.py",
    ),
    _host("miles", "==0.0.2", "https://github.com/radixark/miles"),
)

PAUSE_PATCHES: tuple[Patch, ...] = (
    Patch(
        name="scheduler-pause",
        feature=Feature.INTERRUPT,
        targets=targets(
            f"{SCHEDULER}.pause_generation",
            f"{SCHEDULER}.continue_generation",
            f"{SCHEDULER}.process_input_requests",
            f"{SCHEDULER}.process_batch_result",
            f"{SCHEDULER}._add_request_to_queue",
            f"{SCHEDULER}.is_fully_idle",
            f"{SCHEDULER}.flush_cache",
            f"{SCHEDULER}.abort_request",
            f"{SCHEDULER}.get_internal_state",
        ),
        versions=SGLANG_VERSIONS,
        apply="april.patches.pause.scheduler:around",
        around=True,
        processes=frozenset({Process.SCHEDULER}),
        reason="with requests left SGLang refuses to flush, and a weight update crashes it; an answer has one version",
        link=f"{SGLANG_URL}/issues/33783",
        until="SGLang flushes and updates with queued requests, and reports a version for each token",
    ),
    Patch(
        name="paused-health",
        feature=Feature.INTERRUPT,
        targets=targets("sglang.srt.managers.tokenizer_manager:TokenizerManager.generate_request"),
        versions=SGLANG_VERSIONS,
        apply="april.patches.pause.tokenizer:generate_request",
        around=True,
        processes=frozenset({Process.TOKENIZER}),
        reason="a paused server fails its health check, which generates a token, and the hosts replace it",
        link=f"{SGLANG_URL}/blob/v0.5.15.post1/python/sglang/srt/entrypoints/http_server.py",
        until="SGLang's health check passes while it is paused",
    ),
)
