"""The tiny policy's data and model, in sizes that take a second."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from april.launch.quickstart import characters, libraries, tasks, tiny

SMALL = tiny.TinyRecipe(
    hidden=32, ffn=32, layers=1, heads=2, kv_heads=1, pool=32, steps=4, steady=2, probe=8, probe_every=2
)


def test_batches_keep_to_the_tokens_of_a_step() -> None:
    for batch in itertools.islice(tiny.batches(tiny.TinyRecipe()), 50):
        assert 0 < len(batch) * max(len(ids) for ids, _ in batch) <= 1024


def test_the_teacher_slips_as_often_as_the_recipe_says() -> None:
    recipe = tiny.TinyRecipe()
    right = steps = 0
    for batch in itertools.islice(tiny.batches(recipe), 100):
        for ids, prompt in batch:
            text = "".join(characters.VOCABULARY[index] for index in ids[prompt:-1])
            for step in text.splitlines()[0].split(";"):
                left, result = step.split("=")
                right += sum(map(int, left.split("+"))) == int(result)
                steps += 1
    assert right / steps == pytest.approx(1 - recipe.slips, abs=0.02)


def test_rates_rise_hold_and_fall() -> None:
    recipe = tiny.TinyRecipe()
    rates = [recipe.rate(step) for step in range(recipe.steps)]
    assert rates[0] == 1 / recipe.warm_up
    assert rates[recipe.steady] == 1.0
    assert min(rates[recipe.warm_up :]) == rates[-1] == 0.05


def test_a_trained_folder_loads_like_any_other(tmp_path: Path) -> None:
    libraries.prepare()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reached = tiny.train(SMALL, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert 0.0 <= reached < 0.01
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, len(tokenizer)) == (1, 0, model.config.vocab_size)
    task = tasks.sums(1, 0, tasks.Split.EVAL)[0]
    text = f"{task.prompt}{task.worked()}"
    assert tokenizer(text)["input_ids"] == characters.encode(text)
    assert tokenizer.decode(characters.encode(text)) == text
    assert tokenizer.decode([*characters.encode("1 + 2"), characters.EOS_ID]) == "1 + 2<eos>"


def test_training_is_repeatable_and_lowers_the_loss(tmp_path: Path) -> None:
    libraries.prepare()
    import torch

    def losses() -> list[float]:
        torch.manual_seed(0)
        model = tiny.build(SMALL)
        optimizers = tiny.optimizers_of(model, SMALL)
        batch = next(tiny.batches(SMALL))
        seen = []
        for _ in range(6):
            seen.append(-float(tiny.log_probs(model, batch).sum().detach()))
            tiny.learn(model, optimizers, batch, 0.5)
        return seen

    first = losses()
    assert first[-1] < first[0]
    assert losses() == first
