"""The real parsers of the hosts, Megatron and SGLang take what presets resolve to. See ``fakes/parse_flags.py``."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from april.errors import UsageError
from april.hosts import Host
from april.hosts.resolve import resolve as find
from april.launch.environment.paths import miles_root
from april.launch.presets.catalog import Catalog
from april.launch.run import flags
from april.launch.run.resolve import MODES, Launch, Places, Request, resolve
from april.launch.train import command

FAKES = Path(__file__).resolve().parents[2] / "fakes"
CATALOG = Catalog()
MODELS, DATA, HARDWARE, ALGORITHMS = (CATALOG.names(kind) for kind in ("models", "data", "hardware", "algorithms"))
PAPERS = ("qwen3-4b-dapo-math", "qwen2.5-14b-simplerl-hard", "llama3.1-8b-simplerl-medium", "smollm2-arithmetic")

pytestmark = [pytest.mark.contract, pytest.mark.slow]


@pytest.fixture(scope="module", params=["miles", "slime"])
def host(request: pytest.FixtureRequest) -> Host:
    tree = os.environ.get("SLIME_DIR")
    if miles_root() is None or (request.param == "slime" and not tree):
        pytest.skip(f"no {request.param} here: run `make setup`, or set SLIME_DIR")
    try:
        return find(request.param, tree, {})
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each model, with the config.json that the hosts compare with the flags."""
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        own = CATALOG.get("models", name).own
        made = folder / own["checkpoint"].rpartition("/")[2]
        made.mkdir()
        (made / "config.json").write_text(json.dumps(own["architecture"]))
    return folder


def launch(host: Host, models: Path, preset: str, mode: str, hardware: str | None, algorithm: str | None) -> Launch:
    places = Places(str(models), str(models), str(models / "out"), {})
    return resolve(Request(preset, places, mode, hardware, algorithm, host=host.name), CATALOG)


def host_flags(run: Launch) -> dict[str, Any]:
    """Without those of speculation, which april train reads itself."""
    return {name: value for name, value in run.flags.items() if not name.startswith("specrollout")}


@pytest.fixture(scope="module")
def report(host: Host, models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("parsed")
    pairs: set[tuple[str, ...]] = set()
    for model, data, hardware in itertools.product(MODELS, DATA, HARDWARE):
        for mode, algorithm in itertools.product(MODES, ALGORITHMS):
            run = launch(host, models, f"{model}-{data}", mode, hardware, algorithm)
            pairs |= {tuple(flags.words({name: value})) for name, value in host_flags(run).items()}
    runs = {}
    turns = zip(MODELS, itertools.cycle(HARDWARE), itertools.cycle(MODES), itertools.cycle(ALGORITHMS), strict=False)
    cases = [(f"{model}-deepscaler", mode, hardware, algorithm) for model, hardware, mode, algorithm in turns]
    for preset, mode, hardware, algorithm in [*cases, *((paper, "april", None, None) for paper in PAPERS)]:
        run = launch(host, models, preset, mode, hardware, algorithm)
        device = "cpu" if run.vendor == "cpu" else "cuda"
        words = flags.words(host_flags(run))
        on = "on" if run.mode.april else "off"
        runs[f"{preset} {mode} {hardware} {algorithm}"] = command.host_flags(host, device, on, words)
    (folder / "asked.json").write_text(json.dumps({"pairs": sorted(pairs), "runs": runs}))
    environment = {
        **os.environ,
        **command.overlay_environment(host, "cpu", "on"),
        "APRIL_RUN_DIR": str(folder),
        "PYTHONWARNINGS": "ignore",
    }
    asked = [sys.executable, str(FAKES / "parse_flags.py"), str(folder / "asked.json")]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {"asked": len(pairs), **json.loads(done.stdout.splitlines()[-1])}


def test_every_flag_of_every_combination_is_declared_and_its_value_fits(report: dict[str, Any]) -> None:
    assert report["asked"] > 150
    assert report["pairs"] == {}
    assert report["faults_found"], "a made-up flag and value must be refused"


def test_whole_runs_pass_the_hosts_own_checks(report: dict[str, Any]) -> None:
    assert report["parsed"] == len(MODELS) + len(PAPERS)
    assert report["refused"] == {}
