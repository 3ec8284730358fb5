import pytest

from april.launch.bench.crossing import ENOUGH, Run, Waves, by_batch, oracle_seconds, speeds, trace

PLAIN = [[2, 100.0, 0, [0, 0], 0.1]] * ENOUGH
CYCLES = [[2, 100.0, 4, [4, 2], 0.1, 0.1]] * ENOUGH


def test_waves_are_the_same_for_the_same_seed_and_within_bounds():
    waves = Waves(requests=50, longest=60)
    assert waves.lengths() == Waves(requests=50, longest=60).lengths()
    assert waves.lengths() != Waves(requests=50, longest=60, seed=1).lengths()
    assert all(1 <= length <= 60 for wave in waves.lengths() for length in wave)


def test_speeds_count_the_last_token_of_each_request_and_its_drafts():
    assert speeds(PLAIN + CYCLES, False) == {2: pytest.approx(20.0)}
    assert speeds(PLAIN + CYCLES, True) == {2: pytest.approx(40.0)}
    assert speeds(PLAIN[1:], False) == {}


def test_the_oracle_takes_the_faster_kind_and_a_toggle_that_did_has_no_regret():
    plain, cycles = speeds(PLAIN + CYCLES, False), speeds(PLAIN + CYCLES, True)
    assert oracle_seconds(CYCLES, plain, cycles) == pytest.approx(0.2 * ENOUGH)
    assert oracle_seconds(PLAIN, plain, cycles) == pytest.approx(0.05 * ENOUGH)
    assert oracle_seconds([[7, 1.0, 0, [0] * 7, 0.3]], plain, cycles) == pytest.approx(0.3)


def test_shares_of_cycles_by_batch():
    assert by_batch([*PLAIN, *CYCLES, [1, 1.0, 3, [0], 0.1, 0.1]]) == {"1": 1.0, "2": 0.5}


def test_a_trace_has_the_accepted_drafts_of_every_cycle():
    run = Run(steps=[*PLAIN, *CYCLES])
    assert trace([run, run]) == {"gamma": 4, "accepted": [4, 2] * (2 * ENOUGH)}
