"""The packing bound: what the fit finds, and that no schedule beats the bound."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from april.errors import AprilError
from april.launch.bench import bound
from april.launch.bench.bound import Speed, Stair

SPEED = Speed(fixed=0.03, per_response=0.002, per_token=1e-5, prefill=0.001, most=8)


def stairs(speed: Speed, noise: float = 0.0, count: int = 1) -> list[Stair]:
    source = random.Random(0)
    found = []
    for _ in range(count):
        for batch in (8, 7, 4, 2, 1):
            for context in (20, 200):
                slow = 1 + (noise if source.random() < 0.25 else 0.0)
                found.append(Stair(batch, 8, batch * context, 8 * slow * speed.step(batch, batch * context)))
    return found


def test_the_fit_finds_the_coefficients() -> None:
    found = bound.fit(stairs(SPEED), SPEED.prefill, SPEED.most)
    for name in ("fixed", "per_response", "per_token", "prefill", "most"):
        assert getattr(found, name) == pytest.approx(getattr(SPEED, name), rel=1e-6)
    assert bound.error(found, stairs(SPEED)) < 1e-6


def test_the_fit_is_the_mean_speed_where_the_machine_was_slow_now_and_then() -> None:
    found = bound.fit(stairs(SPEED, noise=1.0, count=200), 0.0, 8)
    assert found.step(8, 800) == pytest.approx(1.25 * SPEED.step(8, 800), rel=0.05)


def test_no_coefficient_is_negative() -> None:
    falling = [Stair(batch, 1, 10.0 * batch, 1 - 0.05 * batch) for batch in (8, 4, 2, 1)]
    found = bound.fit(falling, 0.0, 8)
    assert min(found.fixed, found.per_response, found.per_token) >= 0


def test_one_batch_size_is_not_enough() -> None:
    with pytest.raises(AprilError, match="fewer than two batch sizes"):
        bound.fit([Stair(4, 8, 40, 1.0)] * 3, 0.0, 8)


def test_tokens_of_a_response() -> None:
    # Tokens 2, 3 and 4 of a response with a prompt of 10 see 12, 13 and 14 tokens.
    assert SPEED.tokens(10, 2, 5) == pytest.approx(3 * (0.03 / 8 + 0.002) + 1e-5 * (12 + 13 + 14))
    assert SPEED.tokens(10, 0, 1) == 0
    whole = SPEED.tokens(10, 0, 50)
    assert whole == pytest.approx(SPEED.tokens(10, 0, 20) + SPEED.tokens(10, 20, 50))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
    st.integers(1, 12),
    st.integers(1, 50),
    st.randoms(use_true_random=False),
)
def test_no_schedule_is_faster(lengths: list[int], most: int, prompt: int, source: random.Random) -> None:
    """Any admission, in any order, with interruptions: a step's time is the model's, prefill is paid once at least."""
    speed = Speed(0.03, 0.002, 1e-5, 0.001, most)
    done = [0] * len(lengths)
    seconds = 0.0
    while any(have < want for have, want in zip(done, lengths, strict=True)):
        open_ = [number for number, want in enumerate(lengths) if done[number] < want]
        chosen = source.sample(open_, source.randint(1, min(most, len(open_))))
        fresh = [number for number in chosen if done[number] == 0]
        seconds += speed.prefill * prompt * len(fresh)
        decoding = [number for number in chosen if number not in fresh]
        if decoding:
            seconds += speed.step(len(decoding), sum(prompt + done[number] for number in decoding))
        for number in chosen:
            done[number] += 1
    least = sum(speed.tokens(prompt, 0, length) for length in lengths) + speed.prefill * prompt
    assert least <= seconds * (1 + 1e-9)
