"""Unpacking a tiny wheel that is made like miles': without its sglang, whole or not at all."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from april.launch.environment import miles_wheel
from april.launch.environment.errors import SetupError

FILES = {
    "miles/__init__.py": "HOST = 'miles'\n",
    "megatron/core/package_info.py": "MAJOR = 0\n",
    "sglang/__init__.py": "raise ImportError('the wrong sglang')\n",
    "sglang/srt/server_args.py": "",
    "miles_rl-0.0.2.dist-info/METADATA": "Name: miles-rl\n",
}


def nothing(scratch: Path, target: Path) -> None:
    """Takes the place of byte-compiling."""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "miles_rl-0.0.2-py3-none-any.whl"
    record = "".join(f"{name},sha256=x,{len(text)}\n" for name, text in FILES.items())
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**FILES, "miles_rl-0.0.2.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def hashes(wheel: Path) -> list[str]:
    return [hashlib.sha256(wheel.read_bytes()).hexdigest()]


def test_sglang_is_left_out(tmp_path: Path, wheel: Path, hashes: list[str]) -> None:
    target = tmp_path / "share" / "miles-0.0.2"
    assert miles_wheel.unpack(wheel, target, hashes, nothing) == 4
    assert sorted(path.name for path in target.iterdir()) == [
        ".complete",
        "megatron",
        "miles",
        "miles_rl-0.0.2.dist-info",
    ]
    assert miles_wheel.is_whole(target, hashes)
    assert [path.name for path in target.parent.iterdir()] == ["miles-0.0.2"]


def test_another_hash_is_refused_before_anything_is_written(tmp_path: Path, wheel: Path) -> None:
    target = tmp_path / "share" / "miles-0.0.2"
    with pytest.raises(SetupError, match=r"which the lock file does not name: it was not unpacked"):
        miles_wheel.unpack(wheel, target, ["0" * 64], nothing)
    assert not target.parent.exists()


def test_an_interruption_leaves_no_half_tree_and_the_next_run_ends_it(
    tmp_path: Path, wheel: Path, hashes: list[str]
) -> None:
    target = tmp_path / "share" / "miles-0.0.2"

    def killed(scratch: Path, target: Path) -> None:
        assert (scratch / "miles" / "__init__.py").is_file()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        miles_wheel.unpack(wheel, target, hashes, killed)
    assert not target.exists()
    assert not miles_wheel.is_whole(target, hashes)
    miles_wheel.unpack(wheel, target, hashes, nothing)
    assert miles_wheel.is_whole(target, hashes)
    assert [path.name for path in target.parent.iterdir()] == ["miles-0.0.2"]


def test_an_interrupted_replacement_keeps_the_old_tree(tmp_path: Path, wheel: Path, hashes: list[str]) -> None:
    target = tmp_path / "miles-0.0.2"
    miles_wheel.unpack(wheel, target, hashes, nothing)

    def killed(scratch: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        miles_wheel.unpack(wheel, target, hashes, killed)
    assert miles_wheel.is_whole(target, hashes)


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_damaged_tree_is_noticed_and_replaced(tmp_path: Path, wheel: Path, hashes: list[str], damage: str) -> None:
    target = tmp_path / "miles-0.0.2"
    miles_wheel.unpack(wheel, target, hashes, nothing)
    file = target / "megatron" / "core" / "package_info.py"
    file.unlink() if damage == "gone" else file.write_text("")
    assert not miles_wheel.is_whole(target, hashes)
    miles_wheel.unpack(wheel, target, hashes, nothing)
    assert miles_wheel.is_whole(target, hashes)


def test_compiled_for_its_final_place(tmp_path: Path, wheel: Path, hashes: list[str]) -> None:
    target = tmp_path / "miles-0.0.2"
    calls = []
    miles_wheel.unpack(wheel, target, hashes, lambda scratch, final: calls.append((scratch.name, final)))
    assert calls == [(".miles-0.0.2.new", target)]
