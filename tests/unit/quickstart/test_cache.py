"""Model folders are complete or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from april.errors import UsageError
from april.launch.quickstart import cache


def build(folder: Path) -> None:
    (folder / "weights").write_text("w")


def fail(folder: Path) -> None:
    build(folder)
    raise RuntimeError("cut off")


def test_built_once(tmp_path: Path) -> None:
    target = tmp_path / "model"
    assert cache.ensure(target, build)
    assert not cache.ensure(target, fail)
    assert (target / "weights").read_text() == "w"


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cut off"):
        cache.ensure(tmp_path / "model", fail)
    assert list(tmp_path.iterdir()) == []


def test_another_process_was_quicker(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def slow(folder: Path) -> None:
        build(folder)
        cache.ensure(target, build)

    cache.ensure(target, slow)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_key_follows_recipe_and_sources(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("1")
    keys = {cache.key({"seed": 0}, ["pytest"], [source]), cache.key({"seed": 1}, ["pytest"], [source])}
    source.write_text("2")
    keys.add(cache.key({"seed": 0}, ["pytest"], [source]))
    assert len(keys) == 3


def test_folder_of_the_environment(tmp_path: Path) -> None:
    assert cache.folder(None, {"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "april"
    assert cache.folder(str(tmp_path / "given"), {}) == tmp_path / "given"


def test_unwritable_cache_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--cache-dir"):
        cache.folder(str(tmp_path / "file" / "cache"), {})
