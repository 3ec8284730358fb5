"""april over the real classes and functions of slime and miles, with a fake server. See ``fakes/real_host.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from april.launch.environment.paths import miles_root

FAKES = Path(__file__).resolve().parents[2] / "fakes"

pytestmark = [pytest.mark.contract, pytest.mark.slow]


def folders(host: str) -> list[Path]:
    """What the host needs on the module search path; skips where it is not there. Megatron comes from miles' wheel."""
    miles = miles_root()
    if miles is None:
        pytest.skip("miles is not set up: run `make setup`")
    if host == "miles":
        return [miles]
    if not (slime := os.environ.get("SLIME_DIR")):
        pytest.skip("SLIME_DIR is not set")
    return [Path(slime), miles]


@pytest.fixture(scope="module", params=["miles", "slime"])
def report(request: pytest.FixtureRequest) -> dict[str, Any]:
    path = os.pathsep.join(map(str, [*folders(request.param), FAKES]))
    environment = {**os.environ, "PYTHONPATH": path, "SGLANG_USE_CPU_ENGINE": "1", "APRIL_HOST": request.param}
    environment.pop("APRIL_RUN_DIR", None)
    command = [sys.executable, str(FAKES / "real_host.py"), request.param]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return {"host": request.param, **json.loads(run.stdout.splitlines()[-1])}


def test_every_check_on_the_real_host(report: dict[str, Any]) -> None:
    failed = {name: error for name, error in report["checks"].items() if error}
    assert not failed, "\n".join(f"{name}:\n{error}" for name, error in failed.items())
    assert len(report["checks"]) == 13


def test_what_a_host_lacks_is_named(report: dict[str, Any]) -> None:
    lacks = {
        "slime": ["dumping of engine inputs", "log probabilities recomputed by prefill"],
        "miles": ["keep_when_insufficient of dynamic filters"],
    }
    assert report["lacks"] == lacks[report["host"]]
