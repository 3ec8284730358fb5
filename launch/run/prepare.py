"""What a run needs and this machine can make: SmolLM2's folder and the prompts of the arithmetic tasks.

The maker is the quick start's (launch/quickstart).
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from pathlib import Path

from april.launch.presets.files import Preset
from april.launch.quickstart import cache, prepare, tasks
from april.launch.run.resolve import Launch

PROMPTS = 512
SMOLLM2 = "smollm2"


def folders(cache_dir: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Where models go that are made here, by name. Nothing is made, and no folder either."""
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    kept = Path(cache_dir) if cache_dir else Path(base) / "april"
    try:
        return {SMOLLM2: str(prepare.smollm2_folder(kept))}
    except importlib.metadata.PackageNotFoundError:  # its package is not installed here: a model folder, as any other
        return {}


def makes_model(launch: Launch, made: Mapping[str, str]) -> bool:
    """Whether the run's model is one that is made here, and not another folder that the user gave."""
    return launch.flags["hf-checkpoint"] in made.values()


def makes_prompts(data: Preset) -> bool:
    """Whether the data are made here."""
    return data.own.get("made") == "arithmetic"


def model(cache_dir: str | None) -> None:
    """Have SmolLM2 in the cache.

    Raises:
        UsageError: when the cache cannot be written; AprilError when the model cannot be made.
    """
    prepare.MODELS[SMOLLM2](cache.folder(cache_dir, os.environ))


def prompts(path: Path, seed: int) -> None:
    """Write the prompts of the arithmetic tasks."""
    tasks.write(tasks.chat_sums(PROMPTS, seed, tasks.Split.TRAIN), path)
