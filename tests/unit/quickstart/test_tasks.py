"""Tasks are a function of (seed, split, index), differ widely in length, and can be verified."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from april.launch.quickstart import reward, tasks
from april.launch.quickstart.tasks import Flaw, Split


def test_same_seed_same_tasks() -> None:
    assert tasks.sums(32, 3, Split.TRAIN) == tasks.sums(32, 3, Split.TRAIN)


@pytest.mark.parametrize(("seed", "split"), [(4, Split.TRAIN), (3, Split.EVAL)])
def test_another_seed_or_split_has_other_tasks(seed: int, split: Split) -> None:
    here, there = tasks.sums(64, 3, Split.TRAIN), tasks.sums(64, seed, split)
    assert sum(a == b for a, b in zip(here, there, strict=True)) < 8  # small sums meet by chance


def test_items_do_not_depend_on_where_the_listing_starts() -> None:
    assert tasks.sums(8, 0, Split.TRAIN, first=24) == tasks.sums(32, 0, Split.TRAIN)[24:]


def test_prompt_and_worked_answer() -> None:
    entry = {"question": "", "answer": "62", "metadata": {"expression": "17 + 5 + 40", "num_terms": 3}}
    task = tasks.Task("17+5+40?", "62", {"dataset": tasks.DATASET, "entry": entry})
    assert task.worked() == "17+5=22;22+40=62\n62"
    assert task.worked(iter([Flaw.SLIPS, Flaw.NONE])) == "17+5=23;23+40=63\n63"
    assert task.worked(iter([Flaw.GIVES_UP, Flaw.GIVES_UP])) == "17+5=22\n22"


def test_worked_answers_get_full_reward_and_slips_get_none() -> None:
    for task in tasks.sums(64, 1, Split.TRAIN):
        assert reward.score(task.worked() + "<eos>", task.metadata) == 1.0
        assert reward.score(task.worked(itertools.repeat(Flaw.SLIPS)) + "<eos>", task.metadata) == 0.0


def test_lengths_have_a_heavy_tail() -> None:
    lengths = sorted(len(task.worked()) for task in tasks.sums(1024, 0, Split.TRAIN))
    assert 12 <= lengths[512] <= 25
    assert lengths[-11] > 10 * lengths[512]  # the longest hundredth
    assert lengths[-1] < 320


def test_each_block_is_equally_hard() -> None:
    terms = [task.terms for task in tasks.sums(800, 0, Split.TRAIN)]
    for first in range(0, 800, tasks.STRATA):
        block = sorted(terms[first : first + tasks.STRATA])
        assert block[:2] == [2, 2]
        assert block[-1] >= 7


def test_held_out_tasks_are_not_trained() -> None:
    training, held_out = tasks.training_and_evaluation(512, 64, seed=0)
    assert (len(training), len(held_out)) == (512, 64)
    assert not {task.prompt for task in training if task.terms > 2} & {task.prompt for task in held_out}


def test_chat_tasks_are_one_digit_sums_for_a_chat_template() -> None:
    first, *_ = tasks.chat_sums(4, 0, Split.TRAIN)
    assert isinstance(first.prompt, list)
    assert first.prompt[0]["role"] == "user"
    assert reward.score(f"The sum is {first.label}.<|im_end|>", first.metadata) == 1.0


def test_file_has_one_object_a_line(tmp_path: Path) -> None:
    made = tasks.sums(3, 0, Split.TRAIN)
    tasks.write(made, tmp_path / "new" / "prompts.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "new" / "prompts.jsonl").read_text().splitlines()]
    assert [(row["prompt"], row["label"]) for row in rows] == [(task.prompt, task.label) for task in made]
    assert reward.score(made[2].worked(), rows[2]["metadata"]) == 1.0
