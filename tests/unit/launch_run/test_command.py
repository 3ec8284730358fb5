"""``april launch``: what it prints, stores and refuses; april train itself is replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from april.errors import UsageError
from april.launch import cli
from april.launch.jobs.job import KINDS
from april.launch.run import command, reference
from april.launch.train import command as train

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; a host that is a folder; a model folder that needs not be made."""
    root = tmp_path / "miles"
    (root / "miles" / "utils").mkdir(parents=True)
    (root / "miles" / "__init__.py").touch()
    monkeypatch.setenv("APRIL_MILES_DIR", str(root))
    monkeypatch.delenv("SLIME_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(command.known, "check", lambda flags, host: None)  # this host has no parser
    monkeypatch.chdir(tmp_path)
    environment = dict(os.environ)
    yield tmp_path
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def trained(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The calls of april train, which succeeds; SmolLM2 is there at once."""
    calls: list[list[str]] = []
    monkeypatch.setattr(train, "run", lambda argv: calls.append(argv) or 0)

    def model(cache_dir: str | None) -> None:
        from april.launch.run import prepare

        folder = Path(prepare.folders(cache_dir, os.environ)["smollm2"])
        folder.mkdir(parents=True, exist_ok=True)
        architecture = command.Catalog().get("models", "smollm2").own["architecture"]
        (folder / "config.json").write_text(json.dumps({**architecture, "rms_norm_eps": 9.999999747378752e-06}))
        (folder / "model.safetensors").touch()

    monkeypatch.setattr(command.prepare, "model", model)
    return calls


SMOLLM2 = ["launch", "smollm2-arithmetic", "--host", "miles"]


def test_a_run_on_this_machine(trained: list[list[str]], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    assert cli.main([*SMOLLM2, "--out", "out", "--json", "--set", "num-rollout=3", "--", "--seed", "5"]) == 0
    out = here / "out"
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"out": str(out), "exit_code": 0}
    [argv] = trained
    assert argv[:6] == ["--host", "miles", "--run-dir", str(out / "run"), "--device", "cpu"]
    assert argv[argv.index("--num-rollout") + 1] == "3"
    assert argv[argv.index("--norm-epsilon") + 1] == "9.999999747378752e-06"
    resolved = yaml.safe_load((out / "resolved.yaml").read_text())
    assert (resolved["mode"], resolved["flags"]["seed"]) == ("april", "5")
    stored = json.loads((out / "environment.json").read_text())
    assert stored["NCCL_GRAPH_REGISTER"] == os.environ["NCCL_GRAPH_REGISTER"] == "0"
    assert "NCCL_GRAPH_REGISTER" in stored[command.FORWARDED].split(",")
    script = (out / "command.sh").read_text()
    assert "export NCCL_GRAPH_REGISTER=0" in script
    assert subprocess.run(["bash", "-n", out / "command.sh"], check=False).returncode == 0
    assert len((out / "prompts.jsonl").read_text().splitlines()) == 512


def test_nodes_of_a_cpu_are_on_this_machine(trained: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """And in its cluster where there is one; the port of the metrics is april train's own, in every mode."""
    port = ["--mode", "sync", "--set", "april-prometheus-port=auto"]
    assert cli.main([*SMOLLM2, "--out", "out", "--nodes", "2", *port]) == 0
    monkeypatch.setattr(command.checks.ray_nodes, "check", lambda *asked: None)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(command.checks.preflight, "_check_cluster", lambda address: None)
    assert cli.main([*SMOLLM2, "--out", "other", "--nodes", "2"]) == 0
    here, cluster = trained
    assert here[here.index("--nodes") + 1] == here[here.index("--actor-num-nodes") + 1] == "2"
    assert here[here.index("--april-prometheus-port") + 1] == "auto"
    assert "--nodes" not in cluster


def test_what_the_user_has_exported_wins(trained: list[list[str]], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "1")
    assert cli.main([*SMOLLM2, "--out", "out"]) == 0
    assert json.loads((here / "out" / "environment.json").read_text())["NCCL_GRAPH_REGISTER"] == "1"


@pytest.mark.parametrize("how", ["raises", "returns"])
def test_a_refused_run_leaves_its_name_free(
    how: str, trained: list[list[str]], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(argv: list[str]) -> int:
        if how == "raises":
            raise UsageError("no")
        return 2

    monkeypatch.setattr(train, "run", refuse)
    assert cli.main([*SMOLLM2, "--out", "out"]) == 2
    assert not (here / "out").exists()


def test_a_run_is_not_overwritten(trained: list[list[str]], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "out").mkdir()
    (here / "out" / "old").touch()
    assert cli.main([*SMOLLM2, "--out", "out"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert trained == []


def test_a_dry_run_prints_everything_and_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["launch", "qwen3-4b-dapo-math", "--dry-run", "--job", "slurm", "--nodes", "2"]) == 0
    said = capsys.readouterr()
    for part in ("# resolved configuration\n", "# environment\n", "# command\n", "# job\n"):
        assert part in said.out
    assert "#SBATCH --nodes=2" in said.out
    assert "HIP_FORCE_DEV_KERNARG=1" in said.out
    assert sorted(path.name for path in here.iterdir()) == ["miles"]


def test_a_dry_run_says_what_would_stop_it_here(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["launch", "qwen3-4b-deepmath", "--hardware", "cpu", "--dry-run", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["algorithm"], found["hardware"], found["job"]) == ("grpo", "cpu", None)
    assert any("no such folder" in line for line in found["findings"])
    assert found["command"][:2] == ["april", "train"]
    assert not (here / "runs").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_job_files(kind: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["launch", "deepseek-r1-distill-qwen-1.5b-simplerl-medium", "--mode", "april+spec", "--hardware", "mi355x-8"]
    assert cli.main([*argv, "--job", kind, "--out", "out", "--nodes", "2", "--slime-dir", "/opt/slime", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    text = Path(told["job"]).read_text()
    assert told["submit"] == f"{command.SUBMIT[kind]} {told['job']}"
    assert "--specrollout on" in text
    assert "NCCL_MIN_NCHANNELS" in text
    assert {path.name for path in (here / "out").iterdir()} == {
        command.FILES[kind],
        "resolved.yaml",
        "command.sh",
        "environment.json",
    }


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["smollm2-arithmetics"], "unknown preset 'smollm2-arithmetics': did you mean smollm2-arithmetic?"),
        (["smollm2-arithmetic", "--mode", "fast"], "--mode fast: use sync, april"),
        (["smollm2-arithmetic", "--host", "verl"], "unknown host 'verl'"),
        (["smollm2-arithmetic", "--set", "over-sampling-batch-size=1"], "at least --rollout-batch-size (4)"),
        (["qwen3-4b-deepmath", "--hardware", "cpu"], "no such folder; hf download Qwen/Qwen3-4B"),
        (["smollm2-arithmetic", "--time", "soon", "--job", "slurm"], "walltime is soon"),
        (["smollm2-arithmetic", "--dryrun"], "unrecognized arguments: --dryrun; april launch --help"),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], says: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.perf_counter()
    host = [] if "--host" in argv else ["--host", "miles"]
    assert cli.main(["launch", *argv, *host]) == 2
    assert time.perf_counter() - begun < 5
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (here / "runs").exists()


def test_help_is_quick() -> None:
    for words in (["launch"], ["presets", "list"]):
        call = [sys.executable, "-m", "april.launch.cli", *words, "--help"]
        took = []
        for _ in range(3):  # the quickest: others work on this machine too
            begun = time.perf_counter()
            assert "usage: april" in subprocess.run(call, capture_output=True, text=True, check=True).stdout
            took.append(time.perf_counter() - begun)
        assert min(took) < 1.0


def test_the_page_of_flags_is_current() -> None:
    page = (ROOT / "docs" / "flags.md").read_text()
    assert page == reference.text(), "run: python -m april.launch.run.reference > docs/flags.md"
    for flag in ("--hardware H", "--memory-backend", "--april-staleness-cap", "--specrollout-drafter"):
        assert flag in page
