"""The books: tokens, lags and waste from calls, for each way a response can go."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from april.errors import AprilError
from april.launch.bench import account
from april.launch.bench.account import Call, Round
from april.launch.bench.bound import Speed

SPEED = Speed(0.03, 0.002, 1e-5, 0.001, 8)


def call(sample: int, before: int, after: int, version: int) -> Call:
    return Call(sample, before, after, version, 0.0, 1.0)


def round_(cycle: int, calls: list[Call], trained: dict[int, int], held: dict[int, int] | None = None) -> Round:
    return Round("april", cycle, cycle, 10.0 * cycle, 10.0 * cycle + 5, 6.0, tuple(calls), trained, held or {})


def test_lags_of_a_resumed_response_and_what_was_carried() -> None:
    rounds = [
        round_(0, [call(0, 0, 4, 0), call(1, 0, 7, 0)], {0: 4}, {1: 7}),
        round_(1, [call(1, 7, 9, 1), call(2, 0, 3, 1)], {1: 9}, {2: 3}),
        round_(2, [call(2, 3, 5, 2)], {2: 5}),
    ]
    found = account.tally(rounds, 1, 1, SPEED)
    assert (found.rounds, found.trained, found.generated, found.wasted) == (2, 14, 7, 0)
    assert found.lags == {0: 4, 1: 10}
    assert (found.carried_in, found.carried_out, found.max_lag) == (7, 0, 1)
    assert found.off_policy_share == pytest.approx(10 / 14)
    assert found.rate == pytest.approx(1.4)
    assert found.round_seconds == (5.0, 5.0)


def test_the_bound_counts_the_lesser_of_trained_and_generated() -> None:
    grows = [round_(0, [call(0, 0, 4, 0), call(1, 0, 40, 0)], {0: 4}, {1: 40})]
    shrinks = [grows[0], round_(1, [call(1, 40, 41, 1)], {1: 41})]
    prefill = SPEED.prefill * 6
    assert account.tally(grows, 0, 1, SPEED).bound_s == pytest.approx(SPEED.tokens(6, 0, 4) + prefill)
    assert account.tally(shrinks, 1, 1, SPEED).bound_s == pytest.approx(SPEED.tokens(6, 40, 41) + prefill)


def test_what_is_neither_trained_nor_held_is_wasted_in_whichever_round() -> None:
    rounds = [
        round_(0, [call(0, 0, 4, 0), call(1, 0, 7, 0)], {0: 4}),
        round_(1, [call(2, 0, 3, 1), call(3, 0, 2, 1)], {2: 3}, {3: 2}),
    ]
    assert account.tally(rounds, 1, 1, SPEED).wasted == 7


def test_a_response_that_starts_again_wastes_what_it_had() -> None:
    rounds = [
        round_(0, [call(0, 0, 9, 0), call(1, 0, 1, 0)], {1: 1}, {0: 9}),
        round_(1, [call(0, 0, 5, 1)], {0: 5}),
    ]
    found = account.tally(rounds, 0, 1, SPEED)
    assert (found.wasted, found.lags) == (9, {0: 6})


def test_faults_are_named() -> None:
    once = round_(0, [call(0, 0, 4, 0)], {0: 4})
    with pytest.raises(AprilError, match="round 1: response 0 was trained twice"):
        account.tally([once, round_(1, [], {0: 4})], 0, 1, SPEED)
    with pytest.raises(AprilError, match="trained with 5 tokens, of which 4 were generated"):
        account.tally([round_(0, [call(0, 0, 4, 0)], {0: 5})], 0, 1, SPEED)


def test_a_round_is_read_from_its_event() -> None:
    event = {
        **{"mode": "sync", "cycle": 1, "version": 1, "started": 1.0, "ended": 2.0, "prompt": 6.0, "time": 3.0},
        **{"calls": [[5, 0, 4, 1, 1.0, 2.0]], "trained": [[5, 4]], "held": [[6, 2]], "event": "bench_round"},
    }
    read = account.of_event(event)
    assert (read.calls[0].sample, read.trained, read.held, read.generated, read.seconds) == (5, {5: 4}, {6: 2}, 4, 1.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=4, max_size=20), st.randoms(use_true_random=False), st.integers(0, 2))
def test_tokens_are_conserved(lengths: list[int], source: random.Random, warm_up: int) -> None:
    """Responses that stop anywhere, are lost or trained: what was generated is trained, held or wasted."""
    have, gone, lost = dict.fromkeys(range(len(lengths)), 0), set(), 0
    rounds = []
    for cycle in range(4):
        calls, trained = [], {}
        for sample, length in enumerate(lengths):
            if sample in gone or source.random() < 0.3:
                continue
            after = source.randint(have[sample], length)
            calls.append(call(sample, have[sample], after, cycle))
            have[sample] = after
            if after == length and source.random() < 0.8:
                trained[sample] = after
                gone.add(sample)
            elif source.random() < 0.1:
                lost += after
                gone.add(sample)
        rounds.append(round_(cycle, calls, trained, {s: n for s, n in have.items() if s not in gone}))
    found = account.tally(rounds, warm_up, 1, SPEED)
    assert found.wasted == lost
    if not lost:
        assert found.trained - found.generated == found.carried_in - found.carried_out
    assert sum(found.lags.values()) == found.trained
