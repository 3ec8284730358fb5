"""The lock files are complete, hashed, and agree with the pins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from april.configs import pins
from april.launch.environment import interpreter
from april.launch.environment.lockfiles import Locked, digest, read_lock, read_names

LOCKED = ("cpu", "dev", "tools", "miles")


@pytest.fixture
def locks(repository: Path) -> Path:
    return repository / "configs" / "locks"


@pytest.mark.parametrize("name", LOCKED)
def test_every_entry_has_a_version_and_hashes(locks: Path, name: str) -> None:
    entries = read_lock(locks / f"{name}.txt")
    assert entries
    assert [entry.name for entry in entries.values() if not entry.version or not entry.hashes] == []


@pytest.mark.parametrize("name", LOCKED)
def test_everything_asked_for_is_locked(locks: Path, name: str) -> None:
    assert set(read_names(locks / f"{name}.in")) <= set(read_lock(locks / f"{name}.txt"))


@pytest.mark.parametrize("name", LOCKED)
def test_every_direct_requirement_of_a_cpu_says_why(locks: Path, name: str) -> None:
    lines = [line for line in (locks / f"{name}.in").read_text().splitlines() if line and not line.startswith("#")]
    exact = [line for line in lines if "==" in line]
    assert [line for line in exact if name in ("cpu", "miles") and "#" not in line] == []


def test_torch_is_apart_and_torchaudio_absent(locks: Path) -> None:
    everything = {name for lock in LOCKED for name in read_lock(locks / f"{lock}.txt")}
    assert not everything & {"torch", "torchaudio"}
    assert not [name for name in everything if name.startswith("nvidia-")]
    assert list(read_lock(locks / "torch.in")) == ["torch"]


def test_the_locks_agree_with_each_other(locks: Path) -> None:
    base = read_lock(locks / "cpu.txt")
    for name in ("dev", "tools"):
        for package, entry in read_lock(locks / f"{name}.txt").items():
            assert base.get(package, entry).version == entry.version, f"{package} in {name}.txt"


def test_the_locks_agree_with_the_pins(locks: Path) -> None:
    locked = {**read_lock(locks / "cpu.txt"), **read_lock(locks / "miles.txt"), **read_lock(locks / "torch.in")}
    checked = [name for name in pins() if name in locked]
    assert {"sglang", "ray", "torch", "miles-rl", "transformers", "fastapi"} <= set(checked)
    assert {name: locked[name].version for name in checked} == {name: pins()[name]["version"] for name in checked}
    assert pins()["python"]["version"] == interpreter.VERSION
    assert all(pin["reason"] for pin in pins().values())


def test_no_address_is_committed(locks: Path) -> None:
    for path in locks.iterdir():
        assert not re.search(r"https?://|file://|--(extra-)?index-url|-[rc] /", path.read_text()), path.name


def test_a_lock_is_read_with_extras_comments_and_continuations(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    one, two = "a" * 64, "b" * 64
    lock.write_text(
        f"# note\nray[default]==2.60.0 \\\n    --hash=sha256:{one} \\\n    --hash=sha256:{two}\n    # via x\nb-C_d\n"
    )
    entries = read_lock(lock)
    assert entries["ray"] == Locked("ray", "2.60.0", (one, two))
    assert entries["b-c-d"] == Locked("b-c-d", "", ())
    assert entries["ray"].requirement == f"ray==2.60.0 --hash=sha256:{one} --hash=sha256:{two}"


def test_a_key_changes_with_content_and_text(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    first = digest([file], "3.11")
    assert digest([file], "3.11") == first
    assert digest([file], "3.12") != first
    file.write_text("2")
    assert digest([file], "3.11") != first
