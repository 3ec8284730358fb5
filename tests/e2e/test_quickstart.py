"""The quick start as a user runs it: both modes on the tiny policy, its figures and its pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from runs import HOSTS

pytestmark = pytest.mark.e2e

PNG = b"\x89PNG"


@pytest.mark.timeout(600)  # the policy may have to be made first
@pytest.mark.parametrize("host", HOSTS)
def test_three_steps_of_both_modes(host: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "april.launch.cli", "quickstart", "--model", "tiny", "--steps", "3", "--json"]
    done = subprocess.run([*command, "--host", host, "--out", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["host"], found["model"], found["steps"]) == (host, "tiny", 3)
    assert found["partials_resumed"] > 0
    assert found["wasted_tokens"] == 0
    assert found["weight_sync_logprob_diff"] < 0.01
    assert found["modes"]["sync"]["weight_sync_logprob_diff"] < 0.01
    assert found["modes"]["sync"]["off_policy_share"] == 0
    assert 0.2 < found["reward_first"] < 0.8
    assert 0.2 < found["reward_last"] <= 1.0
    assert all((out / name).read_bytes().startswith(PNG) for name in ("timeline.png", "reward.png"))
    assert json.loads((out / "report.json").read_text()) == found
