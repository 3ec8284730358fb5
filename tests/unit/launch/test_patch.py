"""``april patch``: what it prints, its exit codes, and one line for bad input."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from april import configs
from april.launch import cli
from april.launch.environment.paths import miles_root
from april.launch.patch import main, matrix, places
from april.patches import check, edits
from april.patches.contracts import CONTRACTS

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture
def miles(tmp_path: Path) -> Path:
    """A copy of miles' sources that a test may change."""
    root = miles_root()
    if root is None:
        pytest.skip("miles is not set up: run `make setup`")
    shutil.copytree(root / "miles", tmp_path / "tree" / "miles")
    return tmp_path / "tree"


def run(capsys: Any, *words: str) -> tuple[int, str, str]:
    code = cli.main(["patch", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_check_of_a_tree(miles: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, "check", "--miles", str(miles), "--json")
    body = json.loads(out)
    assert code == 0
    assert {"target", "version", "patches", "features"} <= set(body)
    assert all(entry["status"] == "ok" for entry in body["patches"] + body["contracts"])
    assert body["features"] == {
        "host": "works",
        "april": "works",
        "correction": "works",
        "telemetry": "works",
        "cpu": "works",
        "interrupt": "works",
    }


def test_a_deliberately_changed_target_is_refused_by_name(miles: Path, capsys: Any) -> None:
    path = miles / "miles" / "backends" / "sglang_utils" / "arguments.py"
    path.write_text(path.read_text().replace("def validate_args(args):", "def validate_args(args, more=1):"))
    code, out, _ = run(capsys, "check", "--miles", str(miles))
    assert code == 1
    assert "miles-server-arguments: miles.utils.arguments:sglang_validate_args of miles" in out
    assert "verified are" in out
    assert "host refused, april refused" in out
    code, out, _ = run(capsys, "diff", "miles-server-arguments", "--from", str(miles_root()), "--to", str(miles))
    assert code == 0
    assert "+def validate_args(args, more=1):" in out


def test_check_of_what_is_installed(capsys: Any) -> None:
    code, out, _ = run(capsys, "check", "--json")
    bodies = json.loads(out)["reports"]
    assert {"sglang", "ray", "torch"} <= {body["package"] for body in bodies}
    faults = {body["package"]: body["reasons"] for body in bodies if body["reasons"]}
    assert faults == {}
    assert code == 0


def test_apply_and_revert_on_the_real_sources(miles: Path, capsys: Any) -> None:
    before = {path: path.read_bytes() for path in miles.rglob("*.py")}
    code, out, _ = run(capsys, "apply", "--to", str(miles))
    assert code == 0
    assert "edited  miles/utils/arguments.py: miles-server-arguments" in out
    assert "miles/ray/train_actor.py: trainer-cuda-redirect" in out
    changed = [path for path in before if path.read_bytes() != before[path]]
    assert len(changed) >= 8
    assert all(path.read_bytes().startswith(before[path]) for path in changed)
    assert run(capsys, "apply", "--to", str(miles))[1].count("was edited") == len(changed)
    assert run(capsys, "check", "--miles", str(miles))[0] == 0
    assert run(capsys, "revert", "--to", str(miles))[0] == 0
    assert {path: path.read_bytes() for path in miles.rglob("*.py")} == before
    assert not (miles / edits.MANIFEST).exists()


def test_apply_refuses_what_does_not_fit_and_says_how_to_leave_it_out(miles: Path, capsys: Any) -> None:
    (miles / "miles" / "backends" / "megatron_utils" / "checkpoint.py").write_text("")
    before = {path: path.read_bytes() for path in miles.rglob("*") if path.is_file()}
    code, _, err = run(capsys, "apply", "--to", str(miles))
    assert code == 1
    assert "cpu does not fit" in err
    assert "--feature host --feature april --feature telemetry --feature interrupt leaves it out" in err
    assert {path: path.read_bytes() for path in miles.rglob("*") if path.is_file()} == before
    assert run(capsys, "apply", "--to", str(miles), "--feature", "host")[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "--sglang", "/nowhere"], "/nowhere does not exist"),
        (["check", "--slime", "v0.3.0"], "v0.3.0 does not exist"),
        (["check", "--slime", "0.3.0"], "slime 0.3.0 is on no registry"),
        (["check", "--sglang", ".@v1"], "is no git clone with the revision v1"),
        (["diff", "nothing"], "no patch or contract 'nothing'"),
        (["diff", "slime-samples", "--to", "."], ". holds no package slime"),
        (["apply", "--to", "."], ". holds none of"),
        (["apply", "--to", "nowhere"], "nowhere is no folder"),
        (["revert", "--to", "."], "`april patch apply` has not edited it"),
        (["frob"], "invalid choice: 'frob'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *words)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_list(capsys: Any) -> None:
    rows = json.loads(run(capsys, "list", "--json")[1])
    assert {row["name"] for row in rows} == {patch.name for patch in main.ALL_PATCHES}
    assert all({"feature", "targets", "versions", "processes", "reason", "link", "until"} <= set(row) for row in rows)
    assert len(run(capsys, "list", "--contracts")[1].splitlines()) == len(CONTRACTS) + 1


def test_the_docs_hold_the_tables_as_they_are(capsys: Any) -> None:
    generated = run(capsys, "list", "--markdown")[1]
    assert generated in (DOCS / "patches.md").read_text(), "run: april patch list --markdown, and put it into the page"


def test_every_version_that_is_supported_is_recorded() -> None:
    """The labels of the fingerprints and the support matrix name the same versions of what must match exactly."""
    for package in ("sglang", "slime", "miles"):
        supported = [row["version"] for row in configs.support()[package] if row["version"] != "latest"]
        assert sorted(check.verified()[package]) == sorted(supported)
        assert next(iter(check.verified()[package])) in supported


def test_the_matrix_tells_what_is_no_longer_as_recorded(miles: Path, monkeypatch: Any, capsys: Any) -> None:
    works = dict.fromkeys(("host", "april", "correction", "telemetry", "cpu", "interrupt"), "works")
    entries = [
        matrix.Entry("miles", "0.0.2", works, "seen"),
        matrix.Entry("miles", "0.0.2", {**works, "cpu": "refused"}, "seen"),
        matrix.Entry("slime", "v1", {}, "seen"),
    ]
    monkeypatch.setattr(matrix, "entries", lambda: entries)
    monkeypatch.setattr(matrix, "_place", lambda entry: str(miles) if entry.package == "miles" else "/nowhere")
    code, out, err = run(capsys, "check", "--matrix", "--json")
    rows = json.loads(out)["rows"]
    assert code == 1
    assert [row["as_recorded"] for row in rows] == [True, False, None]
    assert rows[2]["verdict"] == "not checked"
    assert "miles 0.0.2 is not as recorded" in err


def test_a_version_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places.registry, "cache_dir", lambda: tmp_path)
    with zipfile.ZipFile(tmp_path / "sglang-0.5.12.post1-cp311-x.whl", "w") as archive:
        archive.writestr("sglang/__init__.py", "")
    assert places.registry.wheel("sglang", "0.5.12.post1").name == "sglang-0.5.12.post1-cp311-x.whl"
