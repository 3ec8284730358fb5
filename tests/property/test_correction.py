"""The weights against a slow reference in plain Python, and what must hold for any lags and log probabilities."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from april.correction import weights as w
from april.correction.hook import correct
from april.correction.lags import LaggedLength
from april.correction.settings import Correction, Method
from april.telemetry.offpolicy import TrainerWatch

LOG_PROB = st.floats(-8.0, 0.0, width=32)


@dataclass
class Response:
    """One response: runs of (lag, tokens); by token the two log probabilities, the mask and the loss."""

    runs: list[tuple[int, int]]
    mu: list[float]
    pi_old: list[float]
    mask: list[int]
    loss: list[float]

    @property
    def lags(self) -> list[int]:
        return [lag for lag, count in self.runs for _ in range(count)]


@st.composite
def responses(draw: Any) -> Response:
    runs = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=0, max_size=4))
    length = sum(count for _, count in runs)

    def listed(values: Any) -> list[Any]:
        return draw(st.lists(values, min_size=length, max_size=length))  # type: ignore[no-any-return]

    loss = st.floats(-4, 4, width=32)
    mask = st.sampled_from([1, 1, 1, 0])
    return Response(runs, listed(LOG_PROB), listed(LOG_PROB), listed(mask), listed(loss))


batches = st.lists(responses(), min_size=0, max_size=4)
corrections = st.builds(
    Correction,
    method=st.just(Method.TIS),
    clip=st.tuples(st.floats(0, 1), st.floats(1, 8)),
    decay=st.sampled_from([1.0, 0.9, 0.5]),
    reject=st.none() | st.tuples(st.floats(0, 0.9), st.floats(1.1, 4)),
    numerics=st.booleans(),
)


def arguments(correction: Correction) -> Namespace:
    return Namespace(
        april_correction=correction.method.value,
        april_correction_clip=list(correction.clip),
        april_correction_decay=correction.decay,
        april_correction_reject=correction.reject,
        april_correction_numerics=correction.numerics,
    )


def call(correction: Correction, batch: list[Response]) -> tuple[list[float], list[list[int]], dict[str, torch.Tensor]]:
    """The hook as the hosts call it; loss by token, masks by response, metrics."""
    loss, masks, metrics = correct(
        arguments(correction),
        pg_loss=torch.tensor([x for response in batch for x in response.loss]),
        train_log_probs=[torch.tensor(response.pi_old) for response in batch],
        rollout_log_probs=[torch.tensor(response.mu) for response in batch],
        loss_masks=[torch.tensor(response.mask, dtype=torch.int) for response in batch],
        total_lengths=[len(response.mask) + 3 for response in batch],
        response_lengths=[LaggedLength(response.runs) for response in batch],
    )
    return loss.tolist(), [mask.tolist() for mask in masks], metrics


def slow(correction: Correction, response: Response) -> tuple[list[float], bool, float]:
    """Weights, whether it is rejected, and how far its mean is from a bound."""
    weights, logs = [], []
    for lag, mu, pi_old, mask in zip(response.lags, response.mu, response.pi_old, response.mask, strict=True):
        if not mask or (lag == 0 and not correction.numerics):
            weights.append(1.0)
            continue
        logs.append(pi_old - mu)
        low, high = correction.clip
        weights.append(min(max(math.exp(pi_old - mu), low), high) * correction.decay**lag)
    if correction.reject is None or not logs:
        return weights, False, 1.0
    mean = math.exp(sum(logs) / len(logs))
    least, most = correction.reject
    return weights, not least <= mean <= most, min(abs(mean - least), abs(mean - most))


@given(corrections, batches)
@settings(max_examples=150, deadline=None)
def test_it_agrees_with_the_slow_reference(correction: Correction, batch: list[Response]) -> None:
    losses, masks, metrics = call(correction, batch)
    weights = metrics["april_weight"].tolist()
    start = 0
    for response, mask in zip(batch, masks, strict=True):
        end = start + len(response.mask)
        expected, gone, margin = slow(correction, response)
        if margin < 1e-4:  # too near a bound for float32
            start = end
            continue
        if gone:
            assert weights[start:end] == losses[start:end] == mask == [0] * len(response.mask)
        else:
            assert mask == response.mask
            torch.testing.assert_close(weights[start:end], expected, rtol=1e-5, atol=1e-6)
            weighed = [loss * weight for loss, weight in zip(response.loss, expected, strict=True)]
            torch.testing.assert_close(losses[start:end], weighed, rtol=1e-5, atol=1e-6)
        start = end


@given(corrections.map(lambda correction: replace(correction, numerics=False)), batches)
@settings(max_examples=100, deadline=None)
def test_on_policy_tokens_weigh_exactly_one_and_others_stay_in_bounds(
    correction: Correction, batch: list[Response]
) -> None:
    losses, masks, metrics = call(correction, batch)
    kept = [bool(sum(mask)) or not sum(response.mask) for response, mask in zip(batch, masks, strict=True)]
    tokens = [
        (keep, lag, mask, loss)
        for keep, response in zip(kept, batch, strict=True)
        for lag, mask, loss in zip(response.lags, response.mask, response.loss, strict=True)
    ]
    low, high = correction.clip
    for (keep, lag, mask, before), weight, after in zip(tokens, metrics["april_weight"].tolist(), losses, strict=True):
        if keep and lag == 0:
            assert weight == 1.0
            assert after == before
        elif keep and mask and weight != 0:
            decayed = correction.decay**lag
            assert low * decayed * (1 - 1e-6) <= weight <= high * decayed * (1 + 1e-6)


@given(st.sampled_from([Method.NONE, Method.MASK]), batches)
@settings(max_examples=30, deadline=None)
def test_without_weights_it_is_the_identity(method: Method, batch: list[Response]) -> None:
    args = arguments(Correction(method))
    loss = torch.tensor([x for response in batch for x in response.loss])
    masks = [torch.tensor(response.mask) for response in batch]
    same, same_masks, metrics = correct(
        args,
        pg_loss=loss,
        train_log_probs=[torch.tensor(response.pi_old) for response in batch],
        rollout_log_probs=[torch.tensor(response.mu) for response in batch],
        loss_masks=masks,
        total_lengths=[len(mask) for mask in masks],
        response_lengths=[len(mask) for mask in masks],
    )
    assert same is loss
    assert same_masks is masks
    assert metrics == {}


@given(corrections, batches.filter(bool))
@settings(max_examples=60, deadline=None)
def test_the_rest_of_the_batch_does_not_matter(correction: Correction, batch: list[Response]) -> None:
    """The hosts pack responses as they fit: alone or among others, a response has the same weights, bit for bit."""
    together, masks, _ = call(correction, batch)
    alone = [call(correction, [response]) for response in batch]
    assert together == [x for losses, _, _ in alone for x in losses]
    assert masks == [mask for _, (mask,), _ in alone]


@given(batches, st.tuples(st.floats(0.1, 1), st.floats(0.1, 1)))
@settings(max_examples=60, deadline=None)
def test_more_decay_never_weighs_more(batch: list[Response], decays: tuple[float, float]) -> None:
    least, most = sorted(decays)
    base = Correction(Method.TIS)
    low, high = (call(replace(base, decay=decay), batch)[2]["april_weight"] for decay in (least, most))
    assert bool((low <= high).all())


@given(batches, st.floats(-3.0, 3.0, width=32))
@settings(max_examples=60, deadline=None)
def test_a_leg_is_weighed_by_its_own_log_probabilities(batch: list[Response], shift: float) -> None:
    """Moving the behaviour log probabilities of one lag moves no weight of another."""
    correction = Correction(Method.TIS, clip=(0.0, 1e6))
    moved = [replace(r, mu=[mu + shift * (lag == 2) for mu, lag in zip(r.mu, r.lags, strict=True)]) for r in batch]
    before, after = (call(correction, part)[2]["april_weight"] for part in (batch, moved))
    lags = torch.tensor([lag for response in batch for lag in response.lags])
    assert torch.equal(before[lags != 2], after[lags != 2])


@given(corrections, batches.filter(lambda batch: any(any(response.mask) for response in batch)))
@settings(max_examples=60, deadline=None)
def test_the_effective_sample_size_is_that_of_kish_and_at_most_the_number_of_tokens(
    correction: Correction, batch: list[Response]
) -> None:
    _, _, metrics = call(correction, batch)
    counted = torch.tensor([mask for response in batch for mask in response.mask]) != 0
    means = {f"train/{name}": values[counted].mean().item() for name, values in metrics.items()}
    size = TrainerWatch().derive(means)["train/april_ess"]
    weights = [float(weight) for weight in metrics["april_weight"][counted]]
    squares = sum(weight**2 for weight in weights)
    assert size == (pytest.approx(sum(weights) ** 2 / squares / len(weights), rel=1e-4) if squares else 0)
    assert 0 <= size <= 1 + 1e-5
    if len(set(weights)) == 1 and squares:
        assert size == pytest.approx(1)


@given(st.lists(st.tuples(LOG_PROB, LOG_PROB), min_size=1, max_size=30))
def test_the_divergence_of_a_token_is_never_negative(pairs: list[tuple[float, float]]) -> None:
    pi_old, mu = torch.tensor(pairs).unbind(1)
    assert bool((w.k3(pi_old - mu) >= 0).all())
    assert bool((w.k3(torch.zeros(3)) == 0).all())
