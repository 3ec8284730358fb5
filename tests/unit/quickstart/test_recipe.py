"""Both modes get the same run but for over-sampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from april.launch.quickstart.recipe import RECIPES, Inputs, train_flags


@pytest.fixture
def inputs(tmp_path: Path, qwen3: dict[str, Any]) -> Inputs:
    (tmp_path / "config.json").write_text(json.dumps(qwen3))
    return Inputs(tmp_path, tmp_path / "prompts.jsonl", tmp_path / "held-out.jsonl")


def test_modes_differ_in_over_sampling_only(inputs: Inputs) -> None:
    sync, april = (train_flags(RECIPES["tiny"], inputs, mode, 5, 0) for mode in ("sync", "april"))
    different = [index for index, (a, b) in enumerate(zip(sync, april, strict=True)) if a != b]
    assert [sync[index - 1] for index in different] == ["--over-sampling-batch-size"]
    assert [(sync[index], april[index]) for index in different] == [("8", "16")]


def test_a_step_trains_what_a_round_gives(inputs: Inputs) -> None:
    for recipe in RECIPES.values():
        flags = train_flags(recipe, inputs, "sync", 5, 0)
        assert flags[flags.index("--global-batch-size") + 1] == str(recipe.groups * recipe.group_size)


def test_held_out_prompts_are_judged_before_and_after(inputs: Inputs) -> None:
    flags = train_flags(RECIPES["tiny"], inputs, "sync", 7, 0)
    assert flags[flags.index("--eval-interval") + 1] == "7"
    assert flags[flags.index("--eval-prompt-data") + 1 :][:2] == ["heldout", str(inputs.held_out)]
