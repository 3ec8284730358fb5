"""slime's own contract tests of its plugin hooks pass with the overlay's patches armed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from april.launch.environment.paths import miles_root

pytestmark = [pytest.mark.contract, pytest.mark.skipif("SLIME_DIR" not in os.environ, reason="SLIME_DIR is not set")]

WITH_OVERLAY = """
import sys, pytest
from april.patches import boot
boot.install()
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-o", "addopts=", "tests/plugin_contracts"]))
"""


def test_they_pass_with_the_overlay_as_without() -> None:
    slime = Path(os.environ["SLIME_DIR"]).resolve()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, [slime, miles_root()]))),
        "APRIL_HOST": "slime",
        "APRIL_DEVICE": "cpu",
        "SLIME_ACCELERATOR": "cpu",
        "SGLANG_USE_CPU_ENGINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", WITH_OVERLAY], cwd=slime, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 36
    assert "failed" not in done.stdout
