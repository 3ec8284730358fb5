"""Arithmetic with a verifier: reasoning-gym's procedural sums, in numbers of terms with a heavy tail.

A prompt is the bare expression ("17+5+40?"); the worked answer adds term by term ("17+5=22;22+40=62") and ends in a line with
the result. So the length of a response follows the number of terms, and a few are ten times as long as most.
Everything is a function of (seed, split, index).
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

DATASET = "basic_arithmetic"
"""reasoning-gym's name of the tasks, by which reward.py finds the verifier."""

TAIL_INDEX = 1.3
SCALE = 1.5
MAX_TERMS = 24
MAX_DIGITS = 2
SPLIT_SIZE = 1_000_000
"""Items a split may have; reasoning-gym seeds item i with seed + i, so that splits must lie apart."""


class Split(Enum):
    """What tasks are for; no two splits share a random seed."""

    PRETRAIN = 0
    PROBE = 1
    TRAIN = 2
    EVAL = 3


@dataclass(frozen=True, slots=True)
class Task:
    """One line of a prompt file. ``prompt`` is text, or messages for a chat template; ``label`` the result.

    ``metadata`` has the name of reasoning-gym's dataset and its entry, which is what its verifier needs.
    """

    prompt: str | list[dict[str, str]]
    label: str
    metadata: dict[str, Any]

    @property
    def worked(self) -> str:
        """The answer in full, as the tiny policy is taught to write it."""
        total, *terms = (int(term) for term in self.metadata["entry"]["metadata"]["expression"].split(" + "))
        steps = []
        for term in terms:
            steps.append(f"{total}+{term}={total + term}")
            total += term
        return ";".join(steps) + f"\n{total}"


def sums(count: int, seed: int, split: Split, first: int = 0) -> list[Task]:
    """Items ``first`` to ``first + count`` of a split, as bare expressions."""
    return [_bare(_entry(seed, split, index)) for index in range(first, first + count)]


def training_and_evaluation(count: int, held_out: int, seed: int) -> tuple[list[Task], list[Task]]:
    """``count`` prompts to train on and ``held_out`` distinct ones that are not among them."""
    evaluation = list({task.prompt: task for task in sums(2 * held_out, seed, Split.EVAL)}.values())[:held_out]
    kept_out = {task.prompt for task in evaluation}
    training = [task for task in sums(2 * count, seed, Split.TRAIN) if task.prompt not in kept_out]
    return training[:count], evaluation


def chat_sums(count: int, seed: int, split: Split) -> list[Task]:
    """Sums of two one-digit numbers for a model that chats; reasoning-gym's 1 digit includes 10."""
    return [_chat(_generate(2, 1, _base(seed, split), index)) for index in range(count)]


def write(tasks: Iterable[Task], path: Path) -> None:
    """Write a prompt file: one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(task)) + "\n" for task in tasks))


def number_of_terms(uniform: random.Random) -> int:
    """1 + floor(Pareto): three in four are 2 to 4, one in thirty reaches the cap."""
    return min(MAX_TERMS, 1 + int(SCALE * uniform.paretovariate(TAIL_INDEX)))


def _entry(seed: int, split: Split, index: int) -> dict[str, Any]:
    base = _base(seed, split)
    return _generate(number_of_terms(random.Random(base + index)), MAX_DIGITS, base, index)


def _base(seed: int, split: Split) -> int:
    return (seed * len(Split) + split.value) * SPLIT_SIZE


@functools.lru_cache(maxsize=4 * MAX_TERMS)
def _dataset(terms: int, digits: int, seed: int) -> Any:
    from reasoning_gym.arithmetic.basic_arithmetic import BasicArithmeticDataset, BasicArithmeticDatasetConfig

    config = BasicArithmeticDatasetConfig(
        min_terms=terms, max_terms=terms, min_digits=1, max_digits=digits, operators=["+"], allow_parentheses=False, seed=seed
    )
    return BasicArithmeticDataset(config)


def _generate(terms: int, digits: int, seed: int, index: int) -> dict[str, Any]:
    entry: dict[str, Any] = _dataset(terms, digits, seed)[index]
    return entry


def _bare(entry: dict[str, Any]) -> Task:
    prompt = entry["metadata"]["expression"].replace(" ", "") + "?"
    return Task(prompt, entry["answer"], {"dataset": DATASET, "entry": entry})


def _chat(entry: dict[str, Any]) -> Task:
    question = f"{entry['question']} Give the result alone on the last line."
    return Task([{"role": "user", "content": question}], entry["answer"], {"dataset": DATASET, "entry": entry})
