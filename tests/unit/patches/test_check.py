"""check reads a tree, a wheel, an sdist or a revision alike, and says of each row how it stands."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from april.errors import UsageError
from april.patches import check, diff, fingerprint, sources
from april.patches.check import Status, Verdict
from april.patches.core import Contract, Feature, targets

GOOD = "def f(a):\n    return a\n"
BAD = "def f(a):\n    return -a\n"
PLACE = "sglang.srt.thing:f"
METADATA = "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.15\n"


def row(**changes: object) -> Contract:
    fields: dict[str, object] = {
        "name": "thing",
        "feature": Feature.APRIL,
        "targets": targets(PLACE),
        "versions": ">=0.5.12,<0.6",
        "reason": "r",
        "link": "l",
    }
    return Contract(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def one_verified_version(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"sglang": {"0.5.15": {PLACE: fingerprint.of(fingerprint.find(GOOD.encode(), "f"))}}}
    monkeypatch.setattr(check, "verified", lambda: known)


def tree(root: Path, code: str, prefix: str = "") -> Path:
    folder = root / prefix / "sglang" / "srt"
    folder.mkdir(parents=True)
    (folder / "thing.py").write_text(code)
    (folder.parent / "__init__.py").touch()
    (folder.parent / "_version.py").write_text('__version__ = version = "0.5.15"\n')
    return root


def wheel(root: Path, code: str) -> Path:
    path = root / "sglang-0.5.15-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sglang/srt/thing.py", code)
        archive.writestr("sglang-0.5.15.dist-info/METADATA", METADATA)
    return path


def sdist(root: Path, code: str) -> Path:
    path = root / "sglang-0.5.15.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (("python/sglang/srt/thing.py", code), ("PKG-INFO", METADATA)):
            info = tarfile.TarInfo(f"sglang-0.5.15/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def clone(root: Path, code: str) -> sources.Source:
    tree(root, code, "python")
    (root / "setup.py").write_text('setup(\n    name="sglang",\n    version="0.5.15",\n)\n')
    identity = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v1"]):
        subprocess.run(["git", *words], cwd=root, check=True, env={**os.environ, **identity})
    (root / "python" / "sglang" / "srt" / "thing.py").write_text("not what was committed")
    return sources.in_history("sglang", root, "v1")


@pytest.mark.parametrize("form", ["tree", "package", "wheel", "sdist", "clone"])
@pytest.mark.parametrize(("code", "status"), [(GOOD, Status.OK), (BAD, Status.CHANGED), ("", Status.MISSING)])
def test_every_form_is_read_alike(form: str, code: str, status: Status, tmp_path: Path) -> None:
    source = {
        "tree": lambda: sources.at("sglang", str(tree(tmp_path, code))),
        "package": lambda: sources.at("sglang", str(tree(tmp_path, code) / "sglang")),
        "wheel": lambda: sources.at("sglang", str(wheel(tmp_path, code))),
        "sdist": lambda: sources.at("sglang", str(sdist(tmp_path, code))),
        "clone": lambda: clone(tmp_path, code),
    }[form]()
    finding = check.examine(row(), source)
    assert finding.status is status
    assert source.version == "0.5.15"
    if status is Status.CHANGED:
        assert PLACE in finding.detail
        assert "verified are" in finding.detail


@pytest.mark.parametrize(
    ("version", "inside"),
    [
        ("0.5.12.post1", True),
        ("0.5.15.post1+cpu", True),
        ("0.6.0rc1", False),
        ("0.5.11", False),
        ("unknown", False),
        ("garbage", False),
    ],
)
def test_the_range(version: str, inside: bool, tmp_path: Path) -> None:
    source = sources.at("sglang", str(tree(tmp_path, GOOD)))
    source = sources.Source(source.package, source.label, version, source.read)
    assert (check.examine(row(), source).status is Status.OK) is inside


def test_the_first_place_that_exists_counts(tmp_path: Path) -> None:
    source = sources.at("sglang", str(tree(tmp_path, GOOD)))
    assert check.examine(row(targets=targets(f"sglang.srt.new_home:f | {PLACE}")), source).status is Status.OK


def test_presence_is_enough_where_the_code_does_not_count(tmp_path: Path) -> None:
    source = sources.at("sglang", str(tree(tmp_path, BAD)))
    assert check.examine(row(exact=False), source).status is Status.OK
    assert check.examine(row(exact=False, targets=targets("sglang.srt.thing:g")), source).status is Status.MISSING


def test_verdicts(tmp_path: Path) -> None:
    source = sources.at("sglang", str(tree(tmp_path, BAD)))
    fine = row(name="fine", exact=False)
    optional, host = row(name="optional", optional=True), row(name="host", feature=Feature.HOST)
    assert check.report(source, [fine]).verdict(Feature.APRIL) is Verdict.WORKS
    assert check.report(source, [fine, optional]).verdict(Feature.APRIL) is Verdict.DEGRADED
    assert check.report(source, [optional, row()]).verdict(Feature.APRIL) is Verdict.REFUSED
    assert check.report(source, [fine, host]).verdict(Feature.APRIL) is Verdict.REFUSED
    body = check.report(source, [fine, row()]).to_dict()
    assert body["features"] == {"april": "refused"}
    assert [entry["status"] for entry in body["contracts"]] == ["ok", "changed"]
    assert list(body["reasons"]) == ["april"]


def test_what_is_no_python_is_changed_not_a_crash(tmp_path: Path) -> None:
    source = sources.at("sglang", str(tree(tmp_path, "def f(:")))
    finding = check.examine(row(), source)
    assert finding.status is Status.CHANGED
    assert "cannot be read as Python" in finding.detail


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda root: root / "nowhere", "does not exist"),
        (lambda root: root, "holds no package sglang"),
        (lambda root: root / "text.whl", "is neither a folder, a wheel nor an sdist"),
    ],
)
def test_bad_places_are_one_line(make, says: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "text.whl").write_text("no zip")
    with pytest.raises(UsageError, match=says):
        sources.at("sglang", str(make(tmp_path)))


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (GOOD, GOOD, "same"),
        (GOOD, "# a\n" + GOOD.replace("a\n", "a  # b\n"), "formatting"),
        (GOOD, BAD, "changed"),
        (GOOD, "", "removed"),
        ("", GOOD, "added"),
        ("", "", "missing"),
    ],
)
def test_diff(old: str, new: str, status: str, tmp_path: Path) -> None:
    a, b = (sources.at("sglang", str(tree(tmp_path / name, code))) for name, code in (("a", old), ("b", new)))
    (difference,) = diff.compare(row(), a, b)
    assert difference.status == status
    assert bool(difference.text) is (status in ("changed", "removed", "added", "formatting"))


def damaged(root: Path, form: str) -> str:
    """A file that looks like a distribution and is not."""
    if form == "wheel":
        path = wheel(root, GOOD * 400)
        content = bytearray(path.read_bytes())
        content[60:90] = bytes(30)
        path.write_bytes(bytes(content))
    elif form == "sdist":
        path = sdist(root, GOOD * 400)
        path.write_bytes(path.read_bytes()[:150])
    elif form == "fifo":
        path = root / "fifo"
        os.mkfifo(path)
    else:
        return {"device": "/dev/zero", "home": "~nobody-of-that-name/x", "long": "x" * 300}[form]
    return str(path)


@pytest.mark.parametrize("form", ["wheel", "sdist", "fifo", "device", "home", "long"])
def test_what_cannot_be_read_is_one_line(form: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        check.examine(row(), sources.at("sglang", damaged(tmp_path, form)))


def test_metadata_without_a_package_is_missing_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sources.importlib.metadata, "version", lambda name: "0.5.15")
    source = sources.installed("sglang")
    assert source is not None
    assert check.examine(row(), source).status is Status.MISSING


def test_targets_of_different_versions_are_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prints(code: str) -> str:
        return fingerprint.of(fingerprint.find(code.encode(), "f"))

    other = "sglang.srt.other:f"
    known = {"1": {PLACE: prints(GOOD), other: prints(BAD)}, "2": {PLACE: prints(BAD), other: prints(GOOD)}}
    monkeypatch.setattr(check, "verified", lambda: {"sglang": known})
    both = row(targets=targets(PLACE, other))
    for code, status in ((BAD, Status.OK), (GOOD, Status.CHANGED)):
        root = tree(tmp_path / status.value, GOOD)
        (root / "sglang" / "srt" / "other.py").write_text(code)
        assert check.examine(both, sources.at("sglang", str(root))).status is status
