"""Edits in a source tree: the same behaviour as the hooks, and the tree comes back byte for byte."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from april.errors import UsageError
from april.patches import edits
from april.patches.edits import Edit, Reverted

BODY = st.binary(max_size=80).filter(lambda content: edits.BEGIN not in content)


def state(tree: Path) -> dict[str, tuple[str, int]]:
    files = [path for path in sorted(tree.rglob("*")) if path.is_file()]
    return {str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mode) for path in files}


@given(st.lists(BODY, min_size=1, max_size=3), st.integers(0, 3))
def test_revert_restores_every_byte(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], first: int
) -> None:
    tree = tmp_path_factory.mktemp("tree")
    for index, content in enumerate(contents):
        (tree / f"m{index}.py").write_bytes(content)
    (tree / "m0.py").chmod(0o640)
    before = state(tree)
    plan = [Edit(f"m{index}.py", ("p",)) for index in range(len(contents))]
    edits.apply(tree, plan[:first])  # an earlier, smaller apply
    edits.apply(tree, plan)
    assert edits.apply(tree, plan) == []
    for index in range(len(contents)):
        assert (tree / f"m{index}.py").read_bytes().count(edits.CALL) == 1
    done = edits.revert(tree)
    assert [one.how for one in done] == ["restored"] * len(contents)
    assert state(tree) == before


def test_interrupted_in_the_middle_it_reverts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    before, write = state(tmp_path), edits._replace
    calls = []

    def interrupted(path: Path, content: bytes) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(edits, "_replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        edits.apply(tmp_path, [Edit("a.py", ("p",)), Edit("b.py", ("p",))])
    monkeypatch.setattr(edits, "_replace", write)
    assert {one.how for one in edits.revert(tmp_path)} == {"restored"}
    assert state(tmp_path) == before


@pytest.mark.parametrize("text", ["x = 1\n", "x = 1"])
def test_what_the_user_edited_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.py").write_text(text)
    edits.apply(tmp_path, [Edit("a.py", ("p",))])
    (tmp_path / "a.py").write_text("y = 2\n" + (tmp_path / "a.py").read_text() + "z = 3\n")
    assert edits.revert(tmp_path) == [Reverted("a.py", "edited")]
    assert (tmp_path / "a.py").read_text() == "y = 2\nx = 1\nz = 3\n"


def test_a_tree_that_was_upgraded_or_copied_reverts(tmp_path: Path) -> None:
    package = tmp_path / "slime"
    package.mkdir()
    for name in ("a.py", "b.py", "c.py"):
        (package / name).write_text("x = 1\n")
    edits.apply(tmp_path, [Edit(f"slime/{name}.py", ("p",)) for name in "abc"])
    (package / "a.py").write_text("x = 2\n")
    (package / "b.py").unlink()
    assert [one.how for one in edits.revert(tmp_path)] == ["replaced", "replaced", "restored"]
    edits.apply(tmp_path, [Edit("slime/c.py", ("p",))])
    (tmp_path / edits.MANIFEST).unlink()
    assert [one.file for one in edits.revert(tmp_path)] == ["slime/c.py"]
    assert (package / "c.py").read_text() == "x = 1\n"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text("x = 1\n")
    (tmp_path / "a.py").symlink_to("real.py")
    edits.apply(tmp_path, [Edit("a.py", ("p",))])
    assert edits.revert(tmp_path) == [Reverted("a.py", "restored")]
    assert (tmp_path / "a.py").is_symlink()
    assert (tmp_path / "real.py").read_text() == "x = 1\n"


def test_our_lines_changed_by_hand_stop_everything(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    edits.apply(tmp_path, [Edit("a.py", ("p",)), Edit("b.py", ("p",))])
    (tmp_path / "b.py").write_text((tmp_path / "b.py").read_text().replace("apply(__name__)", "apply('m')"))
    before = state(tmp_path)
    with pytest.raises(UsageError, match=r"b\.py: our lines in it were changed; nothing was reverted"):
        edits.revert(tmp_path)
    assert state(tmp_path) == before


@pytest.mark.parametrize("content", [None, "no json", '"x"'])
def test_a_tree_that_was_not_edited(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / edits.MANIFEST).write_text(content)
    with pytest.raises(UsageError, match=r"has not edited it|cannot be read|is no list"):
        edits.revert(tmp_path)


def test_an_edited_tree_behaves_as_the_hooks_do(tmp_path: Path) -> None:
    """Outside a run nothing; in one the patch is live as soon as the module is imported, once, hooks or not."""
    (tmp_path / "slime" / "utils").mkdir(parents=True)
    for folder in ("slime", "slime/utils"):
        (tmp_path / folder / "__init__.py").touch()
    module = tmp_path / "slime" / "utils" / "logging_utils.py"
    module.write_text("def log(args, metrics, step_key):\n    return 'original'\n")
    edits.apply(tmp_path, [Edit("slime/utils/logging_utils.py", ("slime-metrics",))])
    (tmp_path / "sitecustomize.py").write_text("from april.patches import live\nlive.verify = lambda patch: None\n")
    show = (
        "import slime.utils.logging_utils as m\nfrom april.patches import live\n"
        "print(live.live(), hasattr(m.log, '__wrapped__'))"
    )
    armed = "from april.patches import boot\nboot.install()\n" + show

    def play(code: str, **run: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("APRIL_")}
        environment |= {"PYTHONPATH": str(tmp_path), **run}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    assert play(show) == "[] False\n"
    assert play(show, APRIL_HOST="slime", APRIL_DEVICE="cuda") == "['slime-metrics'] True\n"
    assert play(armed, APRIL_HOST="slime", APRIL_DEVICE="cuda") == "['slime-metrics'] True\n"
