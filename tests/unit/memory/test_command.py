"""``april memory selftest``, and how the core is compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from april.launch.cli import main
from april.launch.memory import main as command
from april.memory import selftest

FIGURES = {"freed_fraction", "content_equal", "address_equal", "drift_50_cycles", "latency_ms_per_gib", "faults"}


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "REGION", 32 << 20)
    monkeypatch.setattr(selftest, "CYCLES", 8)
    assert main(["memory", "selftest", "--json", "--backend", "host", "--backend", "hip-emulated"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert set(found["backends"]) == {"host", "hip-emulated"}
    for row in found["backends"].values():
        assert set(row) >= FIGURES
        assert row["freed_fraction"] >= 0.95
        assert row["drift_50_cycles"] < 0.01
        assert all(told.startswith(selftest.AS_IT_MUST) for told in row["faults"].values())
    assert len(found["backends"]["hip-emulated"]["faults"]) == len(selftest.RUNTIME_FAULTS) + 3


def test_what_is_wrong_fails_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "REGION", 4 << 20)
    monkeypatch.setattr(selftest, "CYCLES", 2)
    monkeypatch.setattr(selftest, "_short", lambda runtime: "wrong: nothing was reported")
    assert main(["memory", "selftest", "--backend", "cuda-emulated"]) == 1
    out = capsys.readouterr().out
    assert "cuda-emulated: NOT as it must be" in out
    assert "out of memory in the middle of a resume: wrong: nothing was reported" in out


@pytest.mark.parametrize(
    "result",
    [
        selftest.Result(0.94, 1.0, True, True, 0.0, {}, {"a": selftest.AS_IT_MUST}),
        selftest.Result(1.0, 0.5, True, True, 0.0, {}, {"a": selftest.AS_IT_MUST}),
        selftest.Result(1.0, 1.0, False, True, 0.0, {}, {"a": selftest.AS_IT_MUST}),
        selftest.Result(1.0, 1.0, True, False, 0.0, {}, {"a": selftest.AS_IT_MUST}),
        selftest.Result(1.0, 1.0, True, True, 0.01, {}, {"a": selftest.AS_IT_MUST}),
        selftest.Result(1.0, 1.0, True, True, 0.0, {}, {"a": "wrong: x"}),
        selftest.Result(1.0, 1.0, True, True, 0.0, {}, {}),
    ],
)
def test_each_figure_counts(result: selftest.Result) -> None:
    assert not result.ok


def test_the_command_names_the_backends_there_are() -> None:
    assert command.BACKENDS == selftest.BACKENDS


@pytest.mark.parametrize("words", [["memory"], ["memory", "selftest", "--backend", "vulkan"], ["memory", "selftst"]])
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_is_quick_and_needs_no_torch() -> None:
    script = (
        "import sys\nfrom april.launch.cli import main\ntry: main(['memory', 'selftest', '--help'])\n"
        "except SystemExit: pass\nassert 'torch' not in sys.modules and 'april.memory.library' not in sys.modules"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout
    assert time.perf_counter() - started < 5  # 0.1 s where nothing else runs


BUILD = "from april.memory import build; print(build.emulated('hip'))"


def builds(cache: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_compile_at_once_and_get_one_library(tmp_path: Path) -> None:
    running = [builds(tmp_path) for _ in range(3)]
    told = {process.communicate(timeout=120)[0].strip() for process in running}
    assert len(told) == 1
    library = Path(told.pop())
    assert [path.name for path in library.parent.iterdir()] == [library.name]
    stamp = library.stat().st_mtime_ns
    assert builds(tmp_path).communicate(timeout=60)[0].strip() == str(library)
    assert library.stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"PATH": "/nowhere"}, "there is no g++: install g++ (apt-get install g++), or set CXX"),
        ({"CXX": "/nowhere/g++"}, "CXX=/nowhere/g++ is not there"),
        ({"CXX": "false"}, "false cannot compile april.memory's core"),
    ],
)
def test_no_compiler_is_one_line(tmp_path: Path, environment: dict[str, str], says: str) -> None:
    error = builds(tmp_path, **environment).communicate(timeout=60)[1].splitlines()[-1]
    assert error.startswith("april.errors.AprilError: ")
    assert says in error


def test_a_cache_that_cannot_be_written_is_one_line() -> None:
    error = builds(Path("/proc/nowhere")).communicate(timeout=60)[1].splitlines()[-1]
    assert "set XDG_CACHE_HOME" in error
