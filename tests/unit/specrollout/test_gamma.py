"""Draft lengths: the measured acceptance, the published ladder, the optimum and the bandit."""

from __future__ import annotations

import numpy as np
import pytest
from made_up import HALF_OF_7B, form

from specrollout.gamma import AcceptanceCurve, Bandit, Ladder, Optimal, optimal_gamma
from specrollout.roofline.model import cycle_time

MODEL = form(HALF_OF_7B, {})


def curve_of(share: float, gamma: int = 8, cycles: int = 4000) -> AcceptanceCurve:
    random, curve = np.random.default_rng(0), AcceptanceCurve()
    for _ in range(cycles):
        passed = random.random(gamma) < share
        curve.observe(gamma, int(np.cumprod(passed).sum()))
    return curve


@pytest.mark.parametrize("share", [0.6, 0.8, 0.95])
def test_tokens_per_cycle(share: float) -> None:
    curve = curve_of(share)
    for gamma in (1, 4, 8, 14):  # beyond 8: the share of the last position
        expected = (1 - share ** (gamma + 1)) / (1 - share)
        assert curve.tokens_per_cycle(gamma) == pytest.approx(expected, rel=0.12)


def test_the_curve_forgets() -> None:
    curve = curve_of(0.9)
    for _ in range(3000):
        curve.observe(8, 0)
    assert curve.tokens_per_cycle(8) < 1.05


def test_a_curve_without_data_is_the_expected_one() -> None:
    assert AcceptanceCurve(expected=0.5).tokens_per_cycle(2) == pytest.approx(1.75)


def test_ladder_needs_two_rollouts_in_a_row() -> None:
    ladder = Ladder()
    shares = [0.95, 0.93, 0.94, 0.94, 0.99, 0.99, 0.85, 0.9, 0.85, 0.85, 0.0]
    assert [ladder.after_rollout(round(1000 * s), 1000) for s in shares] == [5, 5, 5, 7, 7, 9, 9, 9, 9, 7, 7]


def test_ladder_ends_and_rollouts_without_drafts() -> None:
    ladder = Ladder()
    assert [ladder.after_rollout(99, 100) for _ in range(12)][-1] == 11
    assert [ladder.after_rollout(0, 0) for _ in range(5)] == [11] * 5
    assert [ladder.after_rollout(1, 100) for _ in range(12)][-1] == 5


def test_optimum_is_that_of_all_lengths() -> None:
    curve = curve_of(0.8)
    gamma, rate = optimal_gamma(MODEL, curve, 4, 1000)
    rates = [curve.tokens_per_cycle(g) / float(cycle_time(MODEL, 4, 1000, g)) for g in range(1, 17)]
    assert rate == pytest.approx(max(rates))
    assert rates[gamma - 1] == pytest.approx(max(rates))


def test_optimum_follows_acceptance() -> None:
    lengths = [optimal_gamma(MODEL, curve_of(share), 4, 1000)[0] for share in (0.3, 0.7, 0.97)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[2]


def test_optimal_decides_every_k_steps_and_for_a_gain_only() -> None:
    rule, high, low = Optimal(MODEL, every=4), curve_of(0.97), curve_of(0.2)
    first = rule.step(high, 4, 1000)
    assert [rule.step(low, 4, 1000) for _ in range(3)] == [first] * 3
    assert rule.step(low, 4, 1000) < first
    stubborn = Optimal(MODEL, margin=100.0)
    assert stubborn.step(high, 4, 1000) == 5


def test_bandit_finds_the_best_arm_and_follows_it() -> None:
    bandit, random = Bandit(arms=(1, 5, 9)), np.random.default_rng(1)
    pulls: list[int] = []
    for step in range(1500):
        best = 5 if step < 700 else 9
        gamma = bandit.choose()
        pulls.append(gamma)
        bandit.observe(gamma, (1.0 if gamma == best else 0.7) * float(random.normal(1, 0.05)), 1.0)
    assert pulls[300:700].count(5) > 320
    assert pulls[1100:].count(9) > 320
