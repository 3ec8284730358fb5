"""Savers over each driver, and a check that nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from april.memory import MemorySaver
from april.memory.emulated import Emulated

MIB = 1 << 20


@pytest.fixture(scope="session")
def python() -> Callable[..., str]:
    """Runs a script in a process of its own; returns what it prints. Imports are the point of such tests."""

    def run(script: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **environment},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


@pytest.fixture(params=["hip", "cuda"])
def gpu(request: pytest.FixtureRequest) -> Iterator[Emulated]:
    """An emulated runtime that holds as much after the test as before."""
    runtime = Emulated(request.param)
    before = runtime.held()
    yield runtime
    runtime.calm()
    assert runtime.held() == before


@pytest.fixture(params=["host", "hip", "cuda"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., MemorySaver]]:
    """Makes savers over one driver, with ``limit`` bytes; all are closed, and then nothing is held."""
    made: list[MemorySaver] = []
    runtime = None if request.param == "host" else Emulated(request.param)
    before = runtime.held() if runtime else None

    def build(limit: int = 512 * MIB, **options: Any) -> MemorySaver:
        options.setdefault("backup_folder", str(tmp_path))
        if runtime is None:
            made.append(MemorySaver(limit=limit, **options))
        else:
            runtime.resize(limit)
            made.append(runtime.saver(**options))
        return made[-1]

    yield build
    for saver in made:
        saver.close()
    if runtime:
        assert runtime.held() == before
