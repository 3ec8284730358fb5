"""Our layers for a CPU, forwards and backwards over packed sequences, on the Megatron that is set up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from april.launch.environment.paths import miles_root

pytestmark = [pytest.mark.contract, pytest.mark.slow]
PROGRAM = Path(__file__).resolve().parents[1] / "fakes" / "megatron_layers.py"


def test_packed_sequences_do_not_see_each_other() -> None:
    root = miles_root()
    if root is None:
        pytest.skip("miles, which carries Megatron, is not set up: run `make setup`")
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "layers (1, 12, 64)" in done.stdout
