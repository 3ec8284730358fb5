"""What ``april train`` is given: model, data, rollout, algorithm and optimizer flags, in the host's names.

Both modes see the same prompts in the same order, from the same seeds, and train the same number of steps of the same
size. They differ in ``--april`` and in how many groups a round starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from april.launch.quickstart import model_flags

MODES = ("sync", "april")
OVER_SAMPLING = {"sync": 1, "april": 2}
"""Groups that a round starts, per group that it trains."""
EVAL_SAMPLES = 4
"""Responses to each held-out prompt, before the first and after the last step."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One model's reinforcement learning. ``prompts`` and ``held_out`` count tasks; lengths are tokens."""

    steps: int
    groups: int
    group_size: int
    max_response: int
    learning_rate: float
    warm_up: int
    prompts: int
    held_out: int
    chat: bool = False

    @property
    def batch(self) -> int:
        """Responses of a training step."""
        return self.groups * self.group_size


RECIPES: Mapping[str, Recipe] = {
    "tiny": Recipe(
        steps=24, groups=8, group_size=8, max_response=320, learning_rate=2e-4, warm_up=4, prompts=4096, held_out=64
    ),
    "smollm2": Recipe(
        steps=2,
        groups=4,
        group_size=4,
        max_response=256,
        learning_rate=1e-5,
        warm_up=0,
        prompts=512,
        held_out=16,
        chat=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of a run: a Hugging Face folder and prompt files."""

    model: Path
    prompts: Path
    held_out: Path


def train_flags(recipe: Recipe, inputs: Inputs, mode: str, steps: int, seed: int) -> list[str]:
    """The host's flags for one mode's run; ``april train`` adds those of the machine."""
    valued: dict[str, object] = {
        "--hf-checkpoint": inputs.model,
        "--load": inputs.model,
        "--ref-load": inputs.model,
        "--prompt-data": inputs.prompts,
        "--input-key": "prompt",
        "--label-key": "label",
        "--custom-rm-path": "april.launch.quickstart.reward.rm",
        "--num-rollout": steps,
        "--rollout-batch-size": recipe.groups,
        "--over-sampling-batch-size": OVER_SAMPLING[mode] * recipe.groups,
        "--n-samples-per-prompt": recipe.group_size,
        "--global-batch-size": recipe.batch,
        "--rollout-max-response-len": recipe.max_response,
        "--rollout-temperature": 1.0,
        "--eval-interval": steps,
        "--n-samples-per-eval-prompt": EVAL_SAMPLES,
        "--eval-max-response-len": recipe.max_response,
        "--rollout-seed": seed,
        "--seed": seed + 1,  # Megatron takes positive seeds only
        "--tensor-model-parallel-size": 1,
        "--pipeline-model-parallel-size": 1,
        "--context-parallel-size": 1,
        "--attention-dropout": 0.0,
        "--hidden-dropout": 0.0,
        "--advantage-estimator": "grpo",
        "--eps-clip": 0.2,
        "--eps-clip-high": 0.28,
        "--kl-coef": 0.0,
        "--entropy-coef": 0.0,
        "--optimizer": "adam",
        "--lr": recipe.learning_rate,
        "--lr-decay-style": "constant",
        "--lr-warmup-iters": min(recipe.warm_up, steps - 1),  # Megatron wants fewer than all
        "--weight-decay": 0.0,
        "--adam-beta1": 0.9,
        "--adam-beta2": 0.98,
        "--clip-grad": 1.0,
    }
    switches = [
        "--eval-prompt-data",
        "heldout",
        str(inputs.held_out),
        *(["--apply-chat-template"] if recipe.chat else []),
    ]
    flags = [text for flag, value in valued.items() for text in (flag, str(value))]
    return [*flags, *switches, *model_flags.from_folder(inputs.model)]
