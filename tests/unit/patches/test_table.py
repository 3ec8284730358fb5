"""The table: unique names, implementations that exist, and nothing of the CPU host on a GPU."""

from __future__ import annotations

import importlib.util

import pytest
from packaging.specifiers import SpecifierSet

from april.patches.check import verified
from april.patches.contracts import CONTRACTS
from april.patches.core import Feature, Process
from april.patches.table import PATCHES, SGLANG_PATCHES, wanted


def test_names_are_unique() -> None:
    names = [row.name for row in (*PATCHES, *SGLANG_PATCHES, *CONTRACTS)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("row", [*PATCHES, *SGLANG_PATCHES, *CONTRACTS], ids=lambda row: row.name)
def test_every_exact_target_has_a_recorded_fingerprint(row) -> None:  # type: ignore[no-untyped-def]
    for target in row.targets if row.exact else ():
        recorded = [place for prints in verified()[row.package].values() for place in prints]
        assert set(target.places) <= set(recorded)


def test_without_partial_rollouts_nothing_of_them_is_patched() -> None:
    assert any(patch.feature is Feature.APRIL for patch in wanted("slime", "cuda"))
    assert not any(patch.feature is Feature.APRIL for patch in wanted("slime", "cuda", april=False))


@pytest.mark.parametrize("patch", PATCHES + SGLANG_PATCHES, ids=lambda patch: patch.name)
def test_each_row_is_complete(patch) -> None:  # type: ignore[no-untyped-def]
    where, _, name = patch.apply.partition(":")
    spec = importlib.util.find_spec(where)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin) as source:
        assert f"def {name}(" in source.read()
    assert patch.processes
    assert patch.reason
    assert patch.link.startswith("https://")
    assert patch.until
    for text in patch.versions.split("|"):
        assert str(SpecifierSet(text))


@pytest.mark.parametrize("device", ["cuda", "rocm"])
@pytest.mark.parametrize("host", ["slime", "miles"])
def test_on_a_gpu_nothing_of_the_cpu_host_is_active(host: str, device: str) -> None:
    assert all(patch.feature is not Feature.CPU for patch in wanted(host, device))


def test_on_a_cpu_every_process_has_something_to_report() -> None:
    for host in ("slime", "miles"):
        covered = {process for patch in wanted(host, "cpu") for process in patch.processes}
        assert covered == set(Process)


def test_a_patch_of_one_host_is_not_asked_of_the_other() -> None:
    assert not any(patch.name.startswith("miles-") for patch in wanted("slime", "cpu"))
    assert not any(patch.name.startswith("slime-") for patch in wanted("miles", "cpu"))
