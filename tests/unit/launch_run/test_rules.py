"""Contradictions are named in one line, before anything starts."""

from __future__ import annotations

import pytest

from april.errors import UsageError
from april.launch.presets.catalog import Catalog
from april.launch.run import rules
from april.launch.run.resolve import Launch, Places, Request, resolve

CATALOG = Catalog()
PLACES = Places("/models", "/data", "/out", {})


def launch(words: str) -> Launch:
    """A run of Qwen3-4B, in the words of the command: mode, hardware, settings and flags after ``--``."""
    before, _, after = words.partition(" -- ")
    given = before.split()
    options = {word.split("=", 1)[0]: word.split("=", 1)[1] for word in given if word.startswith("@")}
    return resolve(
        Request(
            options.get("@preset", "qwen3-4b-simplerl-hard"),
            PLACES,
            options.get("@mode", "april"),
            options.get("@hardware"),
            options.get("@algorithm"),
            int(options.get("@nodes", "1")),
            "@async=on" in given,
            sets=tuple(word for word in given if not word.startswith("@")),
            extra=tuple(after.split()),
        ),
        CATALOG,
    )


FAULTS = [
    ("over-sampling-batch-size=16", "--over-sampling-batch-size is 16: it must be at least --rollout-batch-size (32)"),
    ("@mode=spec sglang-speculative-algorithm=EAGLE", "--sglang-speculative-algorithm is for an"),
    ("@mode=april specrollout-eps=0.1", "--specrollout-eps has no effect with --mode april"),
    ("@mode=spec specrollout-gamma=99", "--specrollout-gamma is 99: it must be from 1 to --specrollout-longest"),
    ("@mode=spec specrollout-drafter=w5", "argument --specrollout-drafter: invalid choice: 'w5'"),
    ("@mode=spec specrollout-toggle=paper", "--specrollout-toggle is paper: it must be with --specrollout-calibration"),
    ("@mode=sync april-leg-budget=0.5", "--april-leg-budget has no effect with --mode sync"),
    ("@mode=sync pause-generation-mode=retract", "--pause-generation-mode retract keeps requests"),
    ("@mode=spec pause-generation-mode=in_place", "--pause-generation-mode in_place keeps requests"),
    ("@mode=sync april-interrupt=retract", "--april-interrupt has no effect with --mode sync"),
    ("april-interrupt=inplace", "--april-interrupt inplace: not with --colocate"),
    ("april-interrupt=retract april-stop=samples", "--april-interrupt retract: not with --april-stop samples"),
    ("april-leg-budget=2", "--april-leg-budget is 2"),
    ("@algorithm=dapo april-stop=samples", "--dynamic-sampling-filter-path needs whole groups"),
    ("april-correction-decay=0.9", "--april-correction-decay needs --april-correction tis"),
    ("@async=on april-staleness-cap=0", "--april-staleness-cap is 0: with --async it must be at least 1"),
    ("@async=on -- --colocate", "--async with --colocate"),
    ("rollout-function-path=mine.rollout", "--rollout-function-path mine.rollout: april train's own stands"),
    ("@hardware=cpu colocate=true memory-backend=tms", "torch_memory_saver has no library for a CPU"),
    ("env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF turns on expandable segments"),
    ("global-batch-size=96", "--global-batch-size 96 does not divide the 256 samples"),
    ("num-steps-per-rollout=2 global-batch-size=256", "with --num-steps-per-rollout 2: a rollout makes 256"),
    ("n-samples-per-prompt=1 rollout-batch-size=6", "--global-batch-size 6 is no multiple of the 4 data-parallel"),
    ("tensor-model-parallel-size=3", "--tensor-model-parallel-size 3 does not divide the model's 32 attention heads"),
    (
        "tensor-model-parallel-size=4 @preset=deepseek-r1-distill-qwen-1.5b-deepmath rollout-num-gpus-per-engine=8",
        "--rollout-num-gpus-per-engine 8 does not divide the model's 12 attention heads",
    ),
    ("@preset=smollm2-deepmath @hardware=h100x8 num-query-groups=2 tensor-model-parallel-size=3", "does not fit"),
    ("tensor-model-parallel-size=4 context-parallel-size=4", "16, does not divide the trainer's 8 devices"),
    ("pipeline-model-parallel-size=8", "--pipeline-model-parallel-size 8 does not divide the model's 36 layers"),
    ("rollout-max-response-len=40960", "--rollout-max-response-len 40960: qwen3-4b has 40960 positions"),
    ("rollout-num-gpus-per-engine=16 @nodes=3", "--rollout-num-gpus-per-engine 16 does not divide the engines' 24"),
    ("colocate=false rollout-num-gpus=8", "trainer and engines want 16 devices, 1 x h100x8 has 8"),
    ("actor-num-gpus-per-node=16", "want 16 devices, 1 x h100x8 has 8"),
    ("@algorithm=reinforce++ kl-loss-coef=0.1", "--kl-coef 0.001 and --kl-loss-coef 0.1"),
    ("@algorithm=reinforce++ normalize-advantages=false", "reinforce_plus_plus needs --normalize-advantages"),
    ("rollout-temperature=0", "--rollout-temperature 0: it must be above 0"),
    ("rollout-temperature=warm", "--rollout-temperature is warm: it must be a number"),
    ("num-epoch=null", "how long to train is missing"),
    ("save=null", "--save-interval without --save"),
    ("eval-interval=5", "--eval-interval without --eval-prompt-data"),
]


@pytest.mark.parametrize(("words", "says"), FAULTS)
def test_a_contradiction_is_named(words: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        rules.check(launch(words))
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        "over-sampling-batch-size=32",
        "@mode=april+spec specrollout-gamma=3",
        "pause-generation-mode=in_place",
        "april-stop=samples april-leg-budget=auto april-correction=tis april-correction-decay=0.9",
        "@async=on april-staleness-cap=1",
        "@mode=sync partial-rollout=true",
        "april-interrupt=retract",
        "env.PYTORCH_ALLOC_CONF=expandable_segments:True no-offload-train=true no-offload-rollout=true",
        "num-steps-per-rollout=2 global-batch-size=128",
        "rollout-num-gpus-per-engine=16 @nodes=2",
        "colocate=false actor-num-gpus-per-node=4 rollout-num-gpus=4",
        "@algorithm=reinforce++ kl-coef=0 kl-loss-coef=0.1",
        "eval-interval=5 -- --eval-prompt-data aime /data/aime.jsonl",
        "save=null save-interval=null load=null",
    ],
)
def test_what_is_right_is_left_alone(words: str) -> None:
    rules.check(launch(words))
