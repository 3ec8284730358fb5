"""Import, arm, apply and undo in every order, each in a process of its own, on a made-up slime."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from april.patches import fingerprint

LOG = "def log(args, metrics, step_key):\n    return 'original'\n"
PROGRAM = """
import sys, threading
from april.patches import boot, live, sglang_plugin
def import_(): import slime.utils.logging_utils
def arm(): boot.install()
def threads():
    all_ = [threading.Thread(target=boot.install) for _ in range(8)]
    [t.start() for t in all_]; [t.join() for t in all_]
def undo(): boot.uninstall()
originals = []
for word in sys.argv[1:]:
    {"import": import_, "arm": arm, "threads": threads, "undo": undo}[word]()
    module = sys.modules.get("slime.utils.logging_utils")
    if module is not None:
        layers, function = 0, module.log
        while hasattr(function, "__wrapped__"):
            layers, function = layers + 1, function.__wrapped__
        originals.append(id(function))
        del function
        print(layers, live.live().count("slime-metrics"), module.log("a", {}, step_key="s"))
assert len(set(originals)) <= 1
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    (root / "slime" / "utils").mkdir(parents=True)
    for folder in ("slime", "slime/utils"):
        (root / folder / "__init__.py").touch()
    (root / "slime" / "utils" / "logging_utils.py").write_text(LOG)
    # What a site customisation of ours does: this made-up function is a version that was verified.
    fp = fingerprint.of(fingerprint.find(LOG.encode(), "log"))
    (root / "sitecustomize.py").write_text(
        "from april.patches import check, telemetry\n"
        f"check.verified = lambda: {{'slime': {{'here': {{'slime.utils.logging_utils:log': '{fp}'}}}}}}\n"
        "telemetry.record = lambda *args: None\n"
    )
    return root


def play(tree: Path, words: tuple[str, ...]) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree), "APRIL_HOST": "slime", "APRIL_DEVICE": "cuda"}
    environment.pop("APRIL_RUN_DIR", None)
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout.splitlines()


def expected(words: tuple[str, ...]) -> list[str]:
    """After each word, once the module is there: whether the patch is live, and it is never there twice."""
    imported = armed = False
    lines = []
    for word in words:
        imported |= word == "import"
        armed = word in ("arm", "threads") or (armed and word != "undo")
        if imported:
            lines.append(f"{int(armed)} {int(armed)} original")
    return lines


WORDS = (("import", "arm", "undo", "arm"), ("import", "arm", "threads"))
ORDERS = sorted({order for words in WORDS for order in itertools.permutations(words)})


def test_every_order(tree: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        played = list(pool.map(lambda words: play(tree, words), ORDERS))
    assert len(ORDERS) >= 18
    for words, lines in zip(ORDERS, played, strict=True):
        assert lines == expected(words), words


def test_a_module_that_was_faster_is_named(tree: Path) -> None:
    code = (
        "import sys\nfrom slime.utils.logging_utils import log as mine\n"
        "from april.patches import boot, live\nboot.install()\nprint(live.skipped())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tree), "APRIL_HOST": "slime", "APRIL_DEVICE": "cuda"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "too late: __main__.mine holds the unpatched log of slime.utils.logging_utils" in done.stderr
    assert "slime-metrics" in done.stdout


def test_a_changed_target_is_skipped_or_refused(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "slime" / "utils").mkdir(parents=True)
    (tmp_path / "slime" / "utils" / "logging_utils.py").write_text(LOG.replace("'original'", "'changed'"))
    code = (
        "import slime.utils.logging_utils as m\nfrom april.patches import boot, live\nboot.install()\n"
        "print(m.log('a', {}, step_key='s'), live.live(), list(live.skipped()))\n"
    )
    for folder in ("slime", "slime/utils"):
        (tmp_path / folder / "__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "APRIL_HOST": "slime", "APRIL_DEVICE": "cuda"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "changed [] ['slime-metrics']\n", done.stderr
    assert "slime.utils.logging_utils:log of slime is" in done.stderr
    assert "Use slime 624b824" in done.stderr
