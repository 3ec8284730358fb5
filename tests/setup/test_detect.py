"""Which device is found, from fake device files and driver tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from april.launch.environment.detect import detect
from april.launch.environment.errors import SetupError


def silent(command: list[str]) -> str:
    return ""


def make(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).mkdir(parents=True)
    return root


def test_nothing_there_means_cpu(tmp_path: Path) -> None:
    assert detect("auto", tmp_path, silent).name == "cpu"


@pytest.mark.parametrize("choice", ["cpu", "cuda", "rocm"])
def test_a_choice_overrides_what_is_there(tmp_path: Path, choice: str) -> None:
    root = make(tmp_path, "proc/driver/nvidia/gpus/0000:01:00.0", "dev/kfd", "opt/rocm")
    assert detect(choice, root, silent).name == choice


def test_an_unknown_choice_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"unknown device 'tpu': one of auto, cpu, cuda, rocm") as caught:
        detect("tpu", tmp_path, silent)
    assert caught.value.exit_code == 2


def test_the_nvidia_driver_lists_a_gpu(tmp_path: Path) -> None:
    assert detect("auto", make(tmp_path, "proc/driver/nvidia/gpus/0000:01:00.0"), silent).name == "cuda"


def test_a_driver_without_a_gpu_is_no_gpu(tmp_path: Path) -> None:
    assert detect("auto", make(tmp_path, "proc/driver/nvidia/gpus"), silent).name == "cpu"


def test_nvidia_smi_lists_a_gpu(tmp_path: Path) -> None:
    answers = {"nvidia-smi": "GPU 0: NVIDIA H200 (UUID: GPU-1)\n"}
    assert detect("auto", tmp_path, lambda command: answers.get(command[0], "")).name == "cuda"


@pytest.mark.parametrize(
    ("paths", "rocminfo", "expected"),
    [
        (("dev/kfd", "opt/rocm"), "", "rocm"),
        (("dev/kfd",), "  Name: gfx942\n", "rocm"),
        (("dev/kfd",), "", "cpu"),
        (("opt/rocm",), "  Name: gfx942\n", "cpu"),
    ],
)
def test_amd_needs_the_kernel_device_and_the_software(
    tmp_path: Path, paths: tuple[str, ...], rocminfo: str, expected: str
) -> None:
    found = detect("auto", make(tmp_path, *paths), lambda command: rocminfo if command[0] == "rocminfo" else "")
    assert found.name == expected


@pytest.mark.parametrize(("build", "expected"), [("rocm", "rocm"), ("cuda", "cuda"), ("unknown", "cuda")])
def test_with_both_vendors_the_torch_build_decides(tmp_path: Path, build: str, expected: str) -> None:
    root = make(tmp_path, "proc/driver/nvidia/gpus/0000:01:00.0", "dev/kfd", "opt/rocm")
    assert detect("auto", root, silent, lambda: build).name == expected
