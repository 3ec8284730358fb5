"""A run's memory saver: which one is chosen, where it begins to track, and what it tells."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from april.errors import UsageError
from april.launch.train import memory
from april.memory import MemorySaver, install, report, tms
from april.patches.miles import arguments
from april.patches.patcher import Patcher
from april.telemetry import events

MIB = 1 << 20


def test_a_run_that_releases_nothing_needs_none() -> None:
    assert memory.chosen("auto", "cpu", ["--num-rollout", "2"]) is None
    assert memory.environment(None) == {"APRIL_MEMORY": ""}
    memory.prepare(None)


def test_a_run_that_pauses_registers_no_buffers_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """sglang#40648, torch_memory_saver#88: a hang; what the user has set stays."""
    monkeypatch.delenv("NCCL_GRAPH_REGISTER", raising=False)
    assert memory.environment("tms") == {"APRIL_MEMORY": "tms", "NCCL_GRAPH_REGISTER": "0"}
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "1")
    assert memory.environment("april")["NCCL_GRAPH_REGISTER"] == "1"


@pytest.mark.parametrize("flag", sorted(memory.RELEASING))
def test_a_run_that_releases_memory_on_a_cpu_gets_ours(flag: str) -> None:
    assert memory.chosen("auto", "cpu", ["--num-rollout", "2", flag]) == "april"


def test_one_that_is_asked_for_is_put_in_place() -> None:
    assert memory.chosen("april", "cpu", []) == "april"
    with pytest.raises(UsageError, match=r"--memory-backend tms: torch_memory_saver has no library for cpu here"):
        memory.chosen("tms", "cpu", [])


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    words = ["train", "--device", "cpu", "--memory-backend", "tms", "--colocate", "--hf-checkpoint", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "april.launch.cli", *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "april: error: --memory-backend tms: torch_memory_saver has no library for cpu here: use auto or april"
    ]


def test_no_compiler_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from april.launch.train import memory; memory.prepare('april')"],
        env={"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "april.memory compiles its core, and there is no g++: install g++" in done.stderr.splitlines()[-1]


def test_a_process_of_a_run_places_ours_only_where_it_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[tuple[str, str]] = []
    monkeypatch.setattr(install, "install", lambda backend, device: placed.append((backend, device)))
    for chosen in ("", "tms"):
        install.install_chosen({"APRIL_MEMORY": chosen, "APRIL_DEVICE": "rocm"})
    install.install_chosen({})
    assert placed == []
    install.install_chosen({"APRIL_MEMORY": "april", "APRIL_DEVICE": "rocm"})
    assert placed == [("april", "rocm")]


def test_a_trainer_on_a_gpu_is_tracked_once_its_device_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(tms, "track_whole_process", lambda: order.append("tracked"))

    def original(index: int) -> str:
        order.append(f"device {index}")
        return "done"

    cuda = SimpleNamespace(set_device=original)
    install.track_from_device(cuda)
    assert cuda.set_device(3) == "done"
    cuda.set_device(3)
    assert order == ["device 3", "tracked", "device 3"]
    assert cuda.set_device is original


def test_a_trainer_tracked_where_cuda_is_read_as_cpu(python: Callable[..., str]) -> None:
    """Pinned memory stays when the process is paused: the hosts send weights from it then."""
    python(
        "from april.memory.install import install\nassert install('auto', 'cpu') == 'april'\n"
        "import torch\nfrom april.patches.cpu import cuda_redirect\nfrom april.patches.patcher import Patcher\n"
        "cuda_redirect.apply(None, Patcher())\nfrom torch_memory_saver import torch_memory_saver as tms\n"
        "state = lambda x: tms.saver.state(x.data_ptr())\nbig = 1 << 20\n"
        "made = [torch.zeros(big, device='cuda'), torch.empty(big, device=torch.cuda.current_device()),\n"
        "        torch.nn.Parameter(torch.empty(big)).cuda(), torch.ones(big).clone(),\n"
        "        torch.ones(big, dtype=torch.float64).to('cuda').float()]\n"
        "assert [state(x) for x in made] == ['active'] * len(made)\n"
        "assert made[0].type() == 'torch.cuda.FloatTensor' and (2 - made[3]).sum() == big\n"
        "pinned = torch.empty_like(made[2], device='cpu', pin_memory=True)\npinned.copy_(made[2].detach())\n"
        "assert state(pinned) is None\ntms.pause(); pinned.sum(); torch.cuda.empty_cache(); tms.resume()\n"
        "assert made[0].sum() == 0 and torch.equal(pinned, made[2])\n",
        TMS_INIT_ENABLE="1",
        TMS_INIT_ENABLE_CPU_BACKUP="1",
    )


def test_what_a_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APRIL_RUN_DIR", str(tmp_path))
    saver = MemorySaver()
    held = [saver.allocate(4 * MIB, "weights", True), saver.allocate(2 * MIB, "kv_cache")]
    saver.pause("weights")
    report.moved(report.Move("pause", "weights", 4 * MIB, 0.5, resident=10), saver.stats())
    [event] = events.read(tmp_path / events.FILE, "memory")
    told = {"operation": "pause", "tag": "weights", "bytes": 4 * MIB, "seconds": 0.5, "resident_before": 10}
    assert told.items() <= event.items()
    assert event["resident"] > MIB
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (row["memory/weights/paused"], row["memory/weights/backup"]) == (4 * MIB, 4 * MIB)
    assert (row["memory/kv_cache/paused"], row["memory/kv_cache/allocated"]) == (0, 2 * MIB)
    assert row["step"] == saver.stats().operations
    del held


def test_nothing_is_told_outside_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APRIL_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    report.moved(report.Move("resume", None, 0, 0.0, 0), MemorySaver().stats())
    assert list(tmp_path.iterdir()) == []


def test_a_pause_compacts_where_it_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts pause between rounds: nothing is being allocated then."""
    monkeypatch.setenv("APRIL_RUN_DIR", str(tmp_path))
    saver = MemorySaver(compaction_interval=4)
    surface = tms.TorchMemorySaver()
    monkeypatch.setattr(surface, "_made", lambda: SimpleNamespace(saver=saver))
    held = [saver.allocate(MIB, "weights", True), saver.allocate(MIB, "weights", True)]
    for move in (surface.pause, surface.resume, surface.pause, surface.resume):
        move("weights")
    operations = [event["operation"] for event in events.read(tmp_path / events.FILE, "memory")]
    assert operations == ["pause", "resume", "pause", "compact", "resume"]
    assert saver.stats().compactions == 1
    del held


@pytest.mark.parametrize(
    ("given", "set_by_miles", "left"),
    [
        (None, True, "disabled"),
        ("tc_piecewise", True, "tc_piecewise"),
        (None, False, None),
        ("disabled", False, "disabled"),
    ],
)
def test_miles_two_switches_of_piecewise_graphs(given: str | None, set_by_miles: bool, left: str | None) -> None:
    module: Any = ModuleType("arguments")

    def validate(args: Any) -> None:
        assert args.sglang_enforce_piecewise_cuda_graph is (given == "tc_piecewise")
        if set_by_miles:  # with --colocate
            args.sglang_disable_piecewise_cuda_graph = True

    module.miles_validate_args = validate
    arguments.apply_colocated(module, Patcher())
    args = SimpleNamespace(sglang_cuda_graph_backend_prefill=given)
    module.miles_validate_args(args)
    assert args.sglang_cuda_graph_backend_prefill == left
