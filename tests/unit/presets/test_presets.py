"""Preset files: what they may hold, how they extend each other, and what ``april presets`` prints of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from april.errors import UsageError
from april.launch import cli
from april.launch.presets import catalog, files

ISSUE = {
    "models": {
        "qwen3-0.6b",
        "qwen3-1.7b",
        "qwen3-4b",
        "qwen3-8b",
        "qwen2.5-7b",
        "qwen2.5-14b",
        "llama3.1-8b",
        "deepseek-r1-distill-qwen-1.5b",
        "smollm2",
    },
    "data": {"dapo-math", "deepscaler", "deepmath", "simplerl-hard", "simplerl-medium", "arithmetic"},
    "algorithms": {"grpo", "dapo", "gspo", "reinforce++"},
    "hardware": {"cpu", "a100x8", "h100x8", "h200x8", "mi300x-8", "mi325x-8", "mi355x-8"},
}

LEAVES = st.none() | st.integers(0, 3)
MAPPINGS = st.dictionaries(
    st.sampled_from("abc"), LEAVES | st.dictionaries(st.sampled_from("ab"), LEAVES, max_size=2), max_size=3
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own presets."""
    for kind in catalog.KINDS:
        (tmp_path / kind).mkdir()
    monkeypatch.setenv(catalog.VARIABLE, str(tmp_path))
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.yaml").write_text(text)


def ours_and(folder: Path) -> catalog.Catalog:
    return catalog.Catalog.of_environment({catalog.VARIABLE: str(folder)})


def test_all_that_were_asked_for_are_there() -> None:
    found = catalog.Catalog()
    assert {kind: set(found.names(kind)) for kind in ISSUE} == ISSUE


def test_every_file_is_read_and_says_what_it_is() -> None:
    found = catalog.Catalog()
    for kind in catalog.KINDS:
        for name in found.names(kind):
            preset = found.get(kind, name)
            assert preset.summary, name
            assert preset.files[0].endswith(f"{kind}/{name}.yaml")


def test_the_numbers_of_the_papers() -> None:
    """../shared/notes/papers.md."""
    found = catalog.Catalog()
    april = found.run("qwen3-4b-dapo-math").flags
    assert (april["rollout-batch-size"], april["n-samples-per-prompt"]) == (32, 8)
    assert (april["rollout-max-response-len"], april["rollout-temperature"], april["lr"]) == (16384, 0.8, 1e-6)
    assert (april["tensor-model-parallel-size"], april["rollout-num-gpus-per-engine"]) == (2, 2)
    efficient = found.run("qwen2.5-7b-simplerl-hard")
    assert (efficient.flags["rollout-batch-size"], efficient.flags["n-samples-per-prompt"]) == (128, 8)
    assert (efficient.flags["rollout-max-response-len"], efficient.flags["lr"]) == (8192, 5e-7)
    assert efficient.own["hardware"] == "a100x8"
    assert found.run("llama3.1-8b-simplerl-medium").cases["grpo"]["kl-loss-coef"] == 0.01


def test_the_users_presets_extend_ours_and_come_first(folder: Path) -> None:
    write(folder / "runs", "mine", "extends: qwen3-4b-dapo-math\nflags: {lr: 3.0e-6, eval-interval: null}\n")
    write(folder / "hardware", "h100x8", "vendor: nvidia\ngpus_per_node: 4\nimage: mine\n")
    found = ours_and(folder)
    mine = found.run("mine")
    assert (mine.flags["lr"], mine.flags["eval-interval"], mine.flags["rollout-batch-size"]) == (3e-6, None, 32)
    assert mine.own["model"] == "qwen3-4b"
    assert found.get("hardware", "h100x8").own["gpus_per_node"] == 4
    assert found.run(str(folder / "runs" / "mine.yaml")).flags == mine.flags


def test_a_run_needs_no_file_of_its_own(folder: Path) -> None:
    write(folder / "runs", "longer", "extends: qwen3-8b-deepmath\nflags: {num-epoch: 3}\n")
    run = ours_and(folder).run("longer")
    assert (run.own["model"], run.own["data"], run.flags["num-epoch"]) == ("qwen3-8b", "deepmath", 3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("flag: {lr: 1}", "unknown key 'flag' (did you mean flags?)"),
        ("zzz: 1", "unknown key 'zzz' (known are extends"),
        ("model: 3", "model is 3; a str is expected"),
        ("flags: {--lr: 1}", "give its name without dashes"),
        ("flags: {lr: {a: 1}}", "lr is a mapping"),
        ("with: {april: 3}", "with april is 3"),
        ("with: {april: {x: {}}}", "with april: x is a mapping"),
        ("summary: [", "no YAML"),
        ("- a", "it holds a list; a mapping is expected"),
        ("summary: mine", "it lacks model, data"),
        ("extends: mine", "mine extends itself: mine -> mine"),
        ("extends: qwen3-4b-dapo-maths", "unknown preset 'qwen3-4b-dapo-maths': did you mean qwen3-4b-dapo-math?"),
    ],
)
def test_a_faulty_file_is_named(folder: Path, text: str, says: str) -> None:
    write(folder / "runs", "mine", text)
    with pytest.raises(UsageError) as error:
        ours_and(folder).run("mine")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("models", "qwen3-4", "unknown model 'qwen3-4': did you mean qwen3-4b? use deepseek"),
        ("hardware", "mi300x", "did you mean mi300x-8?"),
        ("runs", "zzz", "use MODEL-DATA of the models"),
        ("runs", "april-paper", "is there to be extended; use"),
        ("runs", "nowhere.yaml", "preset nowhere.yaml: No such file"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known(kind: str, name: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        catalog.Catalog().get(kind, name)
    assert says in str(error.value)


def test_a_folder_that_is_none() -> None:
    with pytest.raises(UsageError, match="APRIL_PRESETS /nowhere: no such folder"):
        catalog.Catalog.of_environment({catalog.VARIABLE: "/nowhere"})


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["presets", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {kind: set(found[kind]) for kind in ISSUE} == ISSUE
    assert cli.main(["presets", "list"]) == 0
    assert "  mi355x-8 " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["qwen3-4b", "mi300x-8", "dapo", "deepscaler", "qwen3-8b-deepmath"])
def test_show(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    assert cli.main(["presets", "show", name, "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    assert cli.main(["presets", "show", name]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == as_json
    assert as_json["name"] == name


def test_show_of_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["presets", "show", "qwen3-4b-dapo-mth"]) == 2
    error = capsys.readouterr().err
    assert "did you mean qwen3-4b-dapo-math?" in error
    assert error.count("\n") == 1


@given(MAPPINGS, MAPPINGS, MAPPINGS)
def test_extending_a_chain_is_the_same_in_either_order(a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]) -> None:
    # Not where a value stands between two mappings: there the nearer ancestor decides.
    def clash(low: Any, high: Any) -> bool:
        if isinstance(low, dict) and isinstance(high, dict):
            return any(clash(low[key], high[key]) for key in low.keys() & high.keys())
        return isinstance(low, dict) != isinstance(high, dict)

    if not (clash(a, b) or clash(b, c) or clash(a, c)):
        assert files.merged(files.merged(a, b), c) == files.merged(a, files.merged(b, c))


@given(MAPPINGS, MAPPINGS)
def test_what_extends_keeps_all_its_own(base: dict[str, Any], over: dict[str, Any]) -> None:
    merged = files.merged(base, over)
    assert set(merged) == set(base) | set(over)
    assert files.merged(merged, over) == merged
