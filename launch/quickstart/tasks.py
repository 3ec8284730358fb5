"""Arithmetic with a verifier: reasoning-gym's procedural sums, in numbers of terms with a heavy tail.

A prompt is the bare expression ("7+5+4?"); the worked answer adds term by term ("7+5=12;12+4=16") and ends in a line
with the result. So the length of a response follows the number of terms, and a few are ten times as long as most.
Everything is a function of (seed, split, index).
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

DATASET = "basic_arithmetic"
"""reasoning-gym's name of the tasks, by which reward.py finds the verifier."""

TAIL_INDEX = 1.3
SCALE = 1.5
MAX_TERMS = 30
STRATA = 8
"""Any block of so many items has one from each eighth of the distribution of terms: rounds are equally hard."""
SPLIT_SIZE = 1_000_000
"""Items a split may have; reasoning-gym seeds item i with seed + i, so that splits must lie apart."""


class Split(Enum):
    """What tasks are for; no two splits share a random seed."""

    PRETRAIN = 0
    PROBE = 1
    TRAIN = 2
    EVAL = 3


class Flaw(Enum):
    """What a careless teacher does at a step of a worked answer."""

    NONE = 0
    SLIPS = 1
    """The step's result is one too high, and the rest is worked out from it."""
    GIVES_UP = 2
    """What has been added so far is given as the result; not before the first step."""


@dataclass(frozen=True, slots=True)
class Task:
    """One line of a prompt file. ``prompt`` is text, or messages for a chat template; ``label`` the result.

    ``metadata`` has the name of reasoning-gym's dataset and its entry, which is what its verifier needs.
    """

    prompt: str | list[dict[str, str]]
    label: str
    metadata: dict[str, Any]

    @property
    def terms(self) -> int:
        """How many numbers are added."""
        return int(self.metadata["entry"]["metadata"]["num_terms"])

    def worked(self, flaws: Iterator[Flaw] | None = None) -> str:
        """The answer in full: each step, then the result; with a flaw for each step, where given."""
        total, *terms = (int(term) for term in self.metadata["entry"]["metadata"]["expression"].split(" + "))
        steps: list[str] = []
        for term in terms:
            flaw = next(flaws) if flaws else Flaw.NONE
            if flaw is Flaw.GIVES_UP and steps:
                break
            result = total + term + (flaw is Flaw.SLIPS)
            steps.append(f"{total}+{term}={result}")
            total = result
        return ";".join(steps) + f"\n{total}"


def sums(count: int, seed: int, split: Split, first: int = 0) -> list[Task]:
    """Items ``first`` to ``first + count`` of a split, as bare expressions."""
    return [_bare(_entry(seed, split, index)) for index in range(first, first + count)]


def training_and_evaluation(count: int, held_out: int, seed: int) -> tuple[list[Task], list[Task]]:
    """``count`` prompts to train on, and ``held_out`` that are not among them.

    There are only 121 sums of two terms, so these may be in both.
    """
    training = sums(count, seed, Split.TRAIN)
    trained = {task.prompt for task in training if task.terms > 2}
    evaluation = [task for task in sums(2 * held_out, seed, Split.EVAL) if task.prompt not in trained]
    return training, evaluation[:held_out]


def chat_sums(count: int, seed: int, split: Split) -> list[Task]:
    """Sums of two one-digit numbers for a model that chats; reasoning-gym's 1 digit includes 10."""
    return [_chat(_generate(2, _base(seed, split), index)) for index in range(count)]


def write(tasks: Iterable[Task], path: Path) -> None:
    """Write a prompt file: one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(task)) + "\n" for task in tasks))


def number_of_terms(seed: int, index: int) -> int:
    """1 + floor(Pareto): three in four are 2 to 4, one in fifty reaches the cap; stratified over blocks of items."""
    block, place = divmod(index, STRATA)
    source = random.Random(seed + block)
    order = source.sample(range(STRATA), STRATA)
    quantile = (order[place] + random.Random(seed + index).random()) / STRATA
    return min(MAX_TERMS, 1 + int(SCALE * (1 - quantile) ** (-1 / TAIL_INDEX)))


def _entry(seed: int, split: Split, index: int) -> dict[str, Any]:
    base = _base(seed, split)
    return _generate(number_of_terms(base, index), base, index)


def _base(seed: int, split: Split) -> int:
    return (seed * len(Split) + split.value) * SPLIT_SIZE


@functools.lru_cache(maxsize=4 * MAX_TERMS)
def _dataset(terms: int, seed: int) -> Any:
    from reasoning_gym.arithmetic.basic_arithmetic import BasicArithmeticDataset, BasicArithmeticDatasetConfig

    config = BasicArithmeticDatasetConfig(
        min_terms=terms,
        max_terms=terms,
        min_digits=1,
        max_digits=1,
        operators=["+"],
        allow_parentheses=False,
        seed=seed,
    )
    return BasicArithmeticDataset(config)


def _generate(terms: int, seed: int, index: int) -> dict[str, Any]:
    entry: dict[str, Any] = _dataset(terms, seed)[index]
    return entry


def _bare(entry: dict[str, Any]) -> Task:
    prompt = entry["metadata"]["expression"].replace(" ", "") + "?"
    return Task(prompt, entry["answer"], {"dataset": DATASET, "entry": entry})


def _chat(entry: dict[str, Any]) -> Task:
    question = f"{entry['question']} Give the result alone on the last line."
    return Task([{"role": "user", "content": question}], entry["answer"], {"dataset": DATASET, "entry": entry})
