import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as april calibrate does; before numpy is imported
sys.path.insert(0, str(Path(__file__).parent))

from specrollout.roofline.constants import ModelConstants, read_constants
from specrollout.roofline.fit import Fitted, fit
from specrollout.roofline.sweep import Sweep, read_sweep

DATA = Path(__file__).parent / "data"
MODELS = ("7b", "14b")


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


@pytest.fixture(scope="session")
def sweeps() -> dict[str, Sweep]:
    return {model: read_sweep(DATA / f"sweep_a100_tp1_qwen25{model}.csv") for model in MODELS}


@pytest.fixture(scope="session")
def constants() -> dict[str, ModelConstants]:
    return {model: read_constants(DATA / f"model_constants_qwen25{model}_tp1.json") for model in MODELS}


@pytest.fixture(scope="session")
def fitted(sweeps: dict[str, Sweep], constants: dict[str, ModelConstants]) -> Callable[[str], Fitted]:
    made: dict[str, Fitted] = {}

    def of(model: str) -> Fitted:
        if model not in made:
            made[model] = fit(sweeps[model], constants[model])
        return made[model]

    return of
