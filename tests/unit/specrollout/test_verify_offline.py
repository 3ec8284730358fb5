"""The offline tests of ``april verify-sd``: they pass what is right and catch what is wrong."""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch")

from april.launch.verify import cases, faults, offline, reference  # noqa: E402
from april.launch.verify.statistics import chi_square, rejected  # noqa: E402
from specrollout import sampling  # noqa: E402

TARGET = [[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]
DRAFT = [[0.25, 0.25, 0.5], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]]


def test_the_reference_filters() -> None:
    logits = [math.log(part) for part in (0.0625, 0.5, 0.25, 0.1875)]
    assert reference.filtered(logits) == pytest.approx([0.0625, 0.5, 0.25, 0.1875])
    assert reference.filtered(logits, top_k=2) == pytest.approx([0, 2 / 3, 1 / 3, 0])
    assert reference.filtered(logits, top_p=0.6) == pytest.approx([0, 2 / 3, 1 / 3, 0])
    assert reference.filtered(logits, min_p=0.4) == pytest.approx([0, 2 / 3, 1 / 3, 0])
    assert reference.filtered(logits, temperature=0.5, top_k=2) == pytest.approx([0, 0.8, 0.2, 0])


def test_the_laws_are_enumerated() -> None:
    law = reference.joint(TARGET, 2)
    assert law == pytest.approx([0.25, 0.25, 0, 0.1, 0.15, 0.25, 0, 0, 0])
    # First token: min(p, q) = 0.25, 0.25, 0; then 0.5 after token 0, all after token 1.
    assert reference.lengths(TARGET, DRAFT, 2) == pytest.approx([0.5, 0.125, 0.375])


def test_chi_square_knows_its_law() -> None:
    """p-values of right counts are uniform; of wrong ones 0; an impossible count is 0."""
    source = random.Random(0)
    law = [0.5, 0.3, 0.2]
    found = []
    for _ in range(400):
        drawn = source.choices(range(3), law, k=3000)
        found.append(chi_square([drawn.count(token) for token in range(3)], law))
    assert sum(p < 0.1 for p in found) == pytest.approx(40, abs=20)
    assert sum(p < 0.5 for p in found) == pytest.approx(200, abs=40)
    assert chi_square([5200, 3000, 1800], law) < 1e-4
    assert chi_square([50, 50, 1], [0.5, 0.5, 0.0]) == 0
    assert chi_square([100, 0], [1.0, 0.0]) == 1
    assert chi_square([99_990, 6, 4], [0.9999, 0.00006, 0.00004]) > 0.9


def test_holm_takes_the_smallest_first() -> None:
    assert rejected({"a": 0.004, "b": 0.5, "c": 0.009}, level=0.02) == ["a", "c"]
    assert rejected({"a": 0.5, "b": 0.04, "c": 0.9}, level=0.05) == []


def test_the_sampler_follows_every_law() -> None:
    found = {name: p for case in cases.cases() for name, p in offline.p_values(case, draws=100_000).items()}
    assert len(found) == 26
    assert rejected(found) == []


def test_the_plainest_chain_is_the_same_law() -> None:
    """Faults are made of a chain that is right without them."""
    right = offline.Sampler(verify=faults.chain())
    for case in (cases.base(), cases.filtered()):
        assert rejected(offline.p_values(case, right, 200_000)) == []


def test_every_fault_is_caught() -> None:
    found = faults.caught(draws=200_000)
    assert len(found) == len(faults.FAULTS) + 1
    assert [name for name, seen in found.items() if not seen] == []


def test_what_the_target_never_gives_is_not_accepted() -> None:
    assert not faults.accepts_impossible(sampling.verify)
