"""What the end-to-end tests train: the quick start's tasks on its tiny policy before any training."""

from __future__ import annotations

import dataclasses

import pytest


@pytest.fixture(scope="session")
def train_flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags of a small run; an untrained policy answers with noise of very different length."""
    from april.launch.quickstart import libraries, recipe, tasks, tiny

    libraries.prepare()

    folder = tmp_path_factory.mktemp("policy")
    what = tiny.TinyRecipe()
    tiny.save(tiny.build(what), what, 0.0, folder)
    prompts, held_out = tasks.training_and_evaluation(256, 8, seed=0)
    tasks.write(prompts, folder / "prompts.jsonl")
    tasks.write(held_out, folder / "held-out.jsonl")
    small = dataclasses.replace(recipe.RECIPES["tiny"], groups=4, group_size=4, max_response=400)
    inputs = recipe.Inputs(folder, folder / "prompts.jsonl", folder / "held-out.jsonl")
    # Four times more groups than a round trains: most are unfinished when it ends, whatever the machine's speed.
    return [*recipe.train_flags(small, inputs, "april", steps=3, seed=0), "--over-sampling-batch-size", "16"]
