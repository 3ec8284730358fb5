"""The benchmark as a user runs it, as short as can be: every response gets its length, and april loses no token."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from runs import HOSTS, left_running

pytestmark = pytest.mark.e2e

PROMISED = {"trained_tokens_per_s", "wasted_tokens", "bound_share", "off_policy_share", "max_lag", "rounds"}


@pytest.mark.timeout(600)  # the policy may have to be made first
@pytest.mark.parametrize("host", HOSTS)
def test_two_rounds_of_every_mode(host: str, tmp_path: Path) -> None:
    out, lengths = tmp_path / "out", tmp_path / "lengths.json"
    # One response in five is ten times as long as the rest: partials whatever the machine's speed.
    lengths.write_text(json.dumps({"pmf": {"20": 0.8, "200": 0.2}}))
    words = f"bench rollout --model tiny --host {host} --rounds 2 --max-len 200 --lengths {lengths} --out {out} --json"
    command = [sys.executable, "-m", "april.launch.cli", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert left_running(out / "run") == []
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["modes"]) == {"sync", "upstream-partial", "april"}
    assert all(figures.keys() >= PROMISED for figures in found["modes"].values())
    sync, april = found["modes"]["sync"], found["modes"]["april"]
    assert (sync["max_lag"], sync["wasted_tokens"], sync["off_policy_share"]) == (0, 0, 0)
    assert april["wasted_tokens"] == 0
    assert april["max_lag"] >= 1
    assert (
        april["generated_tokens"] - april["trained_tokens"] == april["carried_out_tokens"] - april["carried_in_tokens"]
    )
    assert found["speedup_vs_sync"] > 0
    assert (out / "rollout.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "report.json").read_text()) == found
