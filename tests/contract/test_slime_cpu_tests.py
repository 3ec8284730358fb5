"""slime's own CPU tests (those of its CI's ``cpu-unittest`` job) end with the overlay armed as they do without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from april.launch.environment.paths import miles_root

pytestmark = [
    pytest.mark.contract,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("SLIME_DIR" not in os.environ, reason="SLIME_DIR is not set"),
]
PROGRAM = """
import os, sys, pytest
if os.environ.get("APRIL_HOST"):
    from april.patches import boot
    boot.install()
sys.exit(pytest.main(sys.argv[1:]))
"""


def cpu_tests(slime: Path) -> list[str]:
    """The files that slime's workflow runs without a GPU."""
    workflow = (slime / ".github" / "workflows" / "pr-test.yml").read_text()
    job = workflow[workflow.index("\n  cpu-unittest:") :]
    following = re.search(r"\n  [a-z0-9-]+:\n", job[10:])
    files = re.findall(r'"test_file": "([^"]+)"', job[: following.start() + 10] if following else job)
    return [f"tests/{name}" for name in files if "plugin_contracts" not in name]


def outcomes(slime: Path, files: list[str], folder: Path, **run: str) -> dict[str, str]:
    """Each test with how it ended."""
    report = folder / f"{'with' if run else 'without'}.xml"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("APRIL_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, [slime, miles_root()]))),
        "SGLANG_USE_CPU_ENGINE": "1",
        **run,
    }
    command = [sys.executable, "-c", PROGRAM, "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["--continue-on-collection-errors", f"--junitxml={report}", *files]
    subprocess.run(command, cwd=slime, env=environment, capture_output=True, timeout=580)
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        ended = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[f"{case.get('classname')}::{case.get('name')}"] = ended[0] if ended else "passed"
    return found


def test_they_end_with_the_overlay_as_without(tmp_path: Path) -> None:
    slime = Path(os.environ["SLIME_DIR"]).resolve()
    files = cpu_tests(slime)
    without = outcomes(slime, files, tmp_path)
    armed = outcomes(slime, files, tmp_path, APRIL_HOST="slime", APRIL_DEVICE="cuda")
    assert sum(ended == "passed" for ended in without.values()) > 300
    assert armed == without
