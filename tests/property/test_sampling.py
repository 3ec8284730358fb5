"""Properties of the filtered distribution and of chain verification, over any logits and filters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from april.launch.verify.reference import filtered  # noqa: E402
from specrollout.sampling import Filters, draw, probabilities, verify  # noqa: E402

ALL = 1 << 30

ROWS = st.lists(
    st.tuples(
        st.sampled_from([0.3, 0.7, 1.0, 1.5]),
        st.one_of(st.just(ALL), st.integers(1, 12)),
        st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
        st.one_of(st.just(0.0), st.floats(0.01, 1.0)),
    ),
    min_size=1,
    max_size=5,
)


def filters_of(rows: list[tuple[float, int, float, float]]) -> Filters:
    """Filters of these rows, with the batch's flags."""
    temperatures, top_ks, top_ps, min_ps = (list(column) for column in zip(*rows, strict=True))
    return Filters(
        torch.tensor(temperatures),
        torch.tensor(top_ks, dtype=torch.int32),
        torch.tensor(top_ps),
        torch.tensor(min_ps),
        any(k < ALL for k in top_ks),
        any(p < 1 for p in top_ps),
        any(p > 0 for p in min_ps),
        all(k <= 1 for k in top_ks),
    )


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, vocabulary=st.integers(1, 200), seed=st.integers(0, 2**31), ties=st.booleans())
def test_the_distribution_is_the_reference(
    rows: list[tuple[float, int, float, float]], vocabulary: int, seed: int, ties: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(len(rows), vocabulary, generator=generator)
    if ties:
        logits = logits.round()
    found = probabilities(logits, filters_of(rows))
    for one, line, (temperature, top_k, top_p, min_p) in zip(found, logits, rows, strict=True):
        wanted = torch.tensor(filtered(line.tolist(), temperature, top_k, top_p, min_p))
        if torch.equal(one > 0, wanted > 0):
            torch.testing.assert_close(one, wanted, atol=1e-6, rtol=1e-4)
            continue
        # A token on the very edge of a filter may fall on either side by rounding.
        edges = [
            filtered(line.tolist(), temperature, top_k, top_p * by, min(1.0, min_p * by)) for by in (1 - 1e-5, 1 + 1e-5)
        ]
        assert (one > 0).tolist() in [[weight > 0 for weight in edge] for edge in edges]


@settings(max_examples=40, deadline=None)
@given(batch=st.integers(1, 6), gamma=st.integers(1, 5), vocabulary=st.integers(2, 300), seed=st.integers(0, 2**31))
def test_what_is_emitted_is_possible(batch: int, gamma: int, vocabulary: int, seed: int) -> None:
    """Accepted tokens are the drafted ones, one more follows, and the target gives each a probability."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.softmax(2 * torch.randn(batch, gamma + 1, vocabulary, generator=generator), -1)
    q = torch.softmax(2 * torch.randn(batch, gamma, vocabulary, generator=generator), -1)
    p *= torch.rand(p.shape, generator=generator) < 0.5
    p[..., 0] += 0.1
    p /= p.sum(-1, keepdim=True)
    drafted = draw(q.flatten(0, 1), generator).view(batch, gamma)
    emitted, lengths = verify(drafted, q, p, generator)
    assert emitted.shape == (batch, gamma + 1)
    for one, chain, length, targets in zip(emitted, drafted, lengths.tolist(), p, strict=True):
        assert 1 <= length <= gamma + 1
        assert torch.equal(one[: length - 1], chain[: length - 1])
        assert targets[torch.arange(length), one[:length]].gt(0).all()
        # What was rejected has p < q, and is drawn again only where p = q but for rounding.
        if length <= gamma:
            assert one[length - 1] != chain[length - 1]


@settings(max_examples=30, deadline=None)
@given(vocabulary=st.integers(1, 1200), seed=st.integers(0, 2**31))
def test_only_what_has_weight_is_drawn(vocabulary: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(20, vocabulary, generator=generator)
    weights *= torch.rand(20, vocabulary, generator=generator) < 0.05
    weights[:, int(seed % vocabulary)] += 1e-12
    drawn = draw(weights, generator)
    assert weights.gather(1, drawn.view(-1, 1)).gt(0).all()
