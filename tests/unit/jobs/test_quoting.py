"""Whatever a value holds, it arrives as it was given: in bash, in YAML, in Kubernetes' variables and in Ray's JSON."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from april.launch.jobs import quoting
from april.launch.jobs.render import render

from .jobs import job

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
NASTY = 'it\'s "q" $HOME $(id) `id` \\ \n\r\t\x01\x7f\x85\u2028\ufeff é 😀 -- *'


def expanded(value: str) -> str:
    """What Kubernetes makes of a container variable: ``$$`` is ``$``, ``$(NAME)`` is looked up."""
    out, rest = "", value
    while rest:
        assert not rest.startswith("$("), value
        out += rest[0]
        rest = rest[2:] if rest.startswith("$$") else rest[1:]
    return out


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXT, max_size=5))
@example([NASTY])
@example(["", "-n", "~", "a'b", "\\", "!"])
def test_bash_gives_each_word_as_it_was(values: list[str]) -> None:
    line = quoting.words(values)
    assert "\n" not in line
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' x {line}"], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["x", *values]


@given(TEXT)
@example(NASTY)
@example("$$(A)$(B)$")
def test_yaml_and_kubernetes_give_the_value_as_it_was(value: str) -> None:
    assert yaml.safe_load(quoting.yaml(value)) == value
    assert expanded(yaml.safe_load(quoting.variable(value))) == value


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``ray`` and ``april`` that write their words, ended by NUL each, to the file that $SEEN names."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("ray", "april"):
        (folder / name).write_text('#!/bin/bash\nprintf "%s\\0" "$@" >"$SEEN"\n')
        (folder / name).chmod(0o755)
    return folder


def seen(programs: Path, script: str, folder: Path, *words: str) -> list[str]:
    """What the first of ``programs`` that ``script`` calls is given."""
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SEEN": str(folder / "seen")}
    subprocess.run(["bash", "-c", script, *words], env=environment, check=True, capture_output=True)
    return (folder / "seen").read_bytes().decode().split("\0")[:-1]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXT, TEXT)
@example(NASTY, NASTY)
def test_a_whole_job_gives_values_as_they_were(programs: Path, tmp_path: Path, word: str, value: str) -> None:
    made = job(
        command=("april", "train", "--prompt", word), environment={"VALUE": value}, run_dir=str(tmp_path / "r'$ n")
    )
    expected = ["train", "--prompt", word, "--run-dir", f"{made.run_dir}/attempt-0"]

    submitted = seen(programs, render(made, "ray"), tmp_path, "ray.sh", "http://head:8265")
    assert submitted[:4] == ["job", "submit", "--address", "http://head:8265"]
    assert json.loads(submitted[submitted.index("--runtime-env-json") + 1])["env_vars"]["VALUE"] == value
    assert submitted[-3:-1] == ["bash", "-c"]
    assert seen(programs, submitted[-1], tmp_path) == expected

    config, body = yaml.safe_load_all(render(made, "kubernetes"))
    assert seen(programs, config["data"]["run.sh"], tmp_path) == expected
    container = body["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert expanded({row["name"]: row["value"] for row in container["env"]}["VALUE"]) == value
