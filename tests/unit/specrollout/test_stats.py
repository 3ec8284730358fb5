from hypothesis import given
from hypothesis import strategies as st

from specrollout.hooks import accept_counts
from specrollout.stats import ALARM_CYCLES, Stats

CYCLES = st.integers(1, 8).flatmap(
    lambda gamma: st.tuples(st.just(gamma), st.lists(st.integers(0, gamma), min_size=1, max_size=5))
)


@given(st.lists(CYCLES, max_size=20))
def test_sums_and_acceptance_by_position_agree(cycles: list[tuple[int, list[int]]]):
    stats = Stats()
    for gamma, accepted in cycles:
        stats.cycle(gamma, accepted, 0.1, 0.2)
    report = stats.report()
    assert report["accepted"] == sum(stats.passed.values())
    assert report["drafted"] >= sum(stats.reached.values())  # what follows a rejection was never looked at
    assert all(0 <= share <= 1 for share in report["alpha_by_position"])
    if cycles:
        requests = sum(len(accepted) for _, accepted in cycles)
        assert report["tau"] == 1 + sum(sum(accepted) for _, accepted in cycles) / requests


def test_the_alarm_needs_many_cycles_and_ends_when_drafts_are_taken_again():
    stats = Stats()
    for _ in range(ALARM_CYCLES - 1):
        stats.cycle(4, [0, 0], 0.1, 0.1)
    assert stats.alarm() is None
    stats.cycle(4, [0, 0], 0.1, 0.1)
    assert "tau is 1.000" in str(stats.alarm())
    for _ in range(ALARM_CYCLES // 4):
        stats.cycle(4, [1, 0], 0.1, 0.1)
    assert stats.alarm() is None


def test_plain_steps_are_no_cycles():
    stats = Stats()
    stats.plain(8, 0.5)
    report = stats.report()
    assert (report["ar_steps"], report["ar_tokens"], report["cycles"], report["tau"], report["alpha"]) == (
        1,
        8,
        0,
        None,
        None,
    )


def test_a_request_that_was_never_speculated_for_has_no_rate():
    assert "spec_accept_rate" not in accept_counts(0, 0, 0, [])
    counts = accept_counts(4, 6, 12, [1, 0, 3])
    assert counts["spec_accept_rate"] == 0.5
    assert counts["spec_accept_length"] == 2.5
