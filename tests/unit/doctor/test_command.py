"""The command: its output, its exit codes, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from april.errors import UsageError
from april.launch import cli
from april.launch.doctor import main
from april.launch.doctor.check import Check, Status, fail, ok, warn, worst
from april.launch.doctor.facts import Facts

MachineOf = Callable[[str, Mapping[str, object]], Facts]
HEAVY = ("torch", "sglang", "ray", "miles", "megatron", "slime", "transformers", "numpy", "torch_memory_saver")


def python(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("changes", "code", "status"),
    [
        ({}, 0, "OK"),
        ({"machine.cores": 1}, 1, "WARN"),
        ({"machine.cores": 1, "packages.torch": None}, 2, "FAIL"),
    ],
)
def test_exit_codes_and_json(
    machine_of: MachineOf,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    code: int,
    status: str,
) -> None:
    monkeypatch.setattr(main, "gather", lambda *_: machine_of("cpu", changes))
    assert main.run(["--json"]) == code
    said = json.loads(capsys.readouterr().out)
    assert set(said) == {"checks", "status"}
    assert said["status"] == status
    for row in said["checks"]:
        assert set(row) == {"name", "status", "detail", "remedy"}
        assert row["status"] in ("OK", "WARN", "FAIL")
        assert (row["remedy"] is None) == (row["status"] == "OK")


def test_lines(machine_of: MachineOf) -> None:
    lines = main.as_text(main.examine(machine_of("cpu", {"machine.cores": 1}))).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  WARN"))
    assert lines[at].split()[:2] == ["WARN", "cores"]
    assert lines[at + 1].strip() == "-> give the container or the job two cores"
    assert lines[at + 1].startswith("      ")
    assert lines[-1].endswith(" OK, 1 WARN, 0 FAIL")
    assert "\033" not in "".join(lines)


def test_colour_is_asked_for() -> None:
    text = main.as_text([("group", [ok("a", "fine"), warn("b", "so", "do"), fail("c", "bad", "do")])], colour=True)
    assert [f"\033[{number}m" in text for number in (32, 33, 31)] == [True, True, True]


def test_a_check_that_breaks_is_a_warning(machine_of: MachineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(facts: Facts) -> list[Check]:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(main, "GROUPS", (("device", broken),))
    [(_, [check])] = main.examine(machine_of("cpu", {}))
    assert check.status is Status.WARN
    assert "ZeroDivisionError: oh" in check.detail


def test_a_fault_without_a_remedy_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="needs a remedy"):
        Check("a", Status.FAIL, "bad")
    with pytest.raises(AssertionError, match="needs no remedy"):
        Check("a", Status.OK, "fine", "do")


def test_the_worst_counts() -> None:
    assert worst([]) is Status.OK
    assert worst([warn("a", "b", "c"), ok("d", "e")]) is Status.WARN
    assert [status.exit_code for status in Status] == [0, 1, 2]


@pytest.mark.parametrize("words", [["--device", "tpu"], ["--host", "verl"], ["--what"]])
def test_wrong_usage(words: list[str]) -> None:
    with pytest.raises(UsageError):
        main.run(words)
    assert cli.main(["doctor", *words]) == 2


@pytest.mark.parametrize("words", [["--help"], ["--json"]])
def test_nothing_heavy_is_imported(words: list[str]) -> None:
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr))\n"
        "from april.launch import cli\nsys.exit(cli.main(['doctor', *sys.argv[1:]]))"
    )
    done = python(program, *words)
    assert done.stderr.strip() == "[]"
    assert done.returncode in (0, 1, 2)


def test_this_machine() -> None:
    command = [sys.executable, "-m", "april.launch.cli", "doctor", "--json", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = json.loads(done.stdout)
    names = {check["name"] for check in said["checks"]}
    assert {"python", "host", "sglang", "accelerator", "memory saver", "shared memory", "NUMA", "ports"} <= names
    scarce = ("memory", "shared memory", "ports", "port ", "disk", "Ray")  # what others do on this machine
    assert [c for c in said["checks"] if c["status"] == "FAIL" and not c["name"].startswith(scarce)] == []
    assert done.returncode == {"OK": 0, "WARN": 1, "FAIL": 2}[said["status"]]


def test_a_machine_that_cannot_be_read_is_a_fault_not_a_crash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(*args: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(main, "gather", gone)
    assert main.run(["--json"]) == 2
    assert json.loads(capsys.readouterr().out)["status"] == "FAIL"
