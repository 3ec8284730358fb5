"""Filters, fall-backs, draws and chain verification: examples whose outcome is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from specrollout.sampling import (  # noqa: E402
    BLOCK,
    Filters,
    argmax,
    draw,
    fallback_reason,
    probabilities,
    verify,
    verify_greedy,
)

ALL = 1 << 30


def batch_info(**given: Any) -> Any:
    """What SGLang's batch info says of a batch without anything special."""
    plain: dict[str, Any] = {
        "temperatures": torch.ones(2, 1),
        "top_ks": torch.tensor([ALL, ALL], dtype=torch.int32),
        "top_ps": torch.ones(2),
        "min_ps": torch.zeros(2),
        "is_all_greedy": False,
        "need_top_k_sampling": False,
        "need_top_p_sampling": False,
        "need_min_p_sampling": False,
        "grammars": None,
        "vocab_mask": None,
        "has_custom_logit_processor": False,
        "penalizer_orchestrator": SimpleNamespace(is_required=False),
        "acc_additive_penalties": None,
        "acc_scaling_penalties": None,
        "logit_bias": None,
        "sampling_seed": None,
    }
    return SimpleNamespace(**plain | given)


def row(temperature: float = 1.0, top_k: int = ALL, top_p: float = 1.0, min_p: float = 0.0) -> Filters:
    """The filters of one row."""
    return Filters(
        torch.tensor([temperature]),
        torch.tensor([top_k], dtype=torch.int32),
        torch.tensor([top_p]),
        torch.tensor([min_p]),
        top_k < ALL,
        top_p < 1,
        min_p > 0,
        top_k <= 1,
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, None),
        ({"grammars": [None, None]}, None),
        ({"grammars": [None, object()]}, "grammar"),
        ({"vocab_mask": torch.ones(2, 1)}, "grammar"),
        ({"has_custom_logit_processor": True}, "logit_processor"),
        ({"penalizer_orchestrator": SimpleNamespace(is_required=True)}, "penalty"),
        ({"penalizer_orchestrator": None, "acc_additive_penalties": torch.zeros(2, 4)}, "penalty"),
        ({"penalizer_orchestrator": None, "acc_scaling_penalties": torch.ones(2, 4)}, "penalty"),
        ({"logit_bias": torch.eye(2, 4)}, "logit_bias"),
        ({"logit_bias": torch.zeros(2, 4)}, None),
        ({"sampling_seed": torch.tensor([42, 42])}, "seed"),
        ({"need_min_p_sampling": True, "need_top_k_sampling": True}, None),
    ],
)
def test_why_a_batch_falls_back(given: dict[str, Any], reason: str | None) -> None:
    assert fallback_reason(batch_info(**given)) == reason


@pytest.mark.parametrize(
    ("backend", "needs", "reason"),
    [
        ("flashinfer", ["top_k", "top_p"], None),
        ("flashinfer", ["min_p"], "min_p"),
        ("ascend", [], None),
        ("ascend", ["top_k"], "sampling_backend"),
        ("ascend", ["top_p"], "sampling_backend"),
        ("mine", ["min_p"], "min_p"),
    ],
)
def test_other_backends_filter_otherwise(backend: str, needs: list[str], reason: str | None) -> None:
    given = {f"need_{name}_sampling": True for name in needs}
    assert fallback_reason(batch_info(**given), backend) == reason
    assert fallback_reason(batch_info(**given, is_all_greedy=True), backend) is None


def test_filters_of_a_batch() -> None:
    info = batch_info(top_ks=torch.tensor([1, 50], dtype=torch.int32), need_top_k_sampling=True)
    filters = Filters.of(info)
    assert filters.temperatures.shape == (2,)
    assert filters.greedy.tolist() == [True, False]
    assert filters.repeat(2).top_ks.tolist() == [1, 1, 50, 50]
    assert (filters.need_top_k, filters.need_top_p, filters.need_min_p, filters.all_greedy) == (
        True,
        False,
        False,
        False,
    )


HALVES = [0.5, 0.25, 0.125, 0.0625, 0.0625]


@pytest.mark.parametrize(
    ("filters", "weights"),
    [
        (row(), HALVES),
        (row(temperature=0.5), [0.25, 0.0625, 0.015625, 0.00390625, 0.00390625]),
        (row(top_k=2), HALVES[:2]),
        (row(top_k=4), HALVES[:4]),
        (row(top_k=9), HALVES),
        (row(top_p=0.4), HALVES[:1]),
        (row(top_p=0.7), HALVES[:2]),
        # The tokens that top-k cuts count for top-p: 0.5 + 0.25 of all, not of three.
        (row(top_k=3, top_p=0.76), HALVES[:3]),
        (row(top_k=3, top_p=0.74), HALVES[:2]),
        (row(min_p=0.2), HALVES[:3]),
        (row(min_p=1.0), HALVES[:1]),
        (row(top_k=1), HALVES[:1]),
    ],
)
def test_filtered_probabilities(filters: Filters, weights: list[float]) -> None:
    order = torch.tensor([3, 0, 4, 1, 2])
    logits = torch.empty(1, 5)
    logits[0, order] = torch.tensor(HALVES).log()
    wanted = torch.zeros(1, 5)
    wanted[0, order[: len(weights)]] = torch.tensor(weights) / sum(weights)
    torch.testing.assert_close(probabilities(logits, filters), wanted)


def test_probabilities_into_a_strided_place() -> None:
    chain = torch.zeros(3, 4, 300)
    logits = torch.randn(4, 300).bfloat16()
    filters = Filters.of(batch_info(temperatures=torch.tensor([0.5, 1.0]).view(-1, 1))).repeat(2)
    found = probabilities(logits, filters, out=chain.transpose(0, 1)[:, 1])
    torch.testing.assert_close(chain[1], torch.softmax(logits.float() / filters.temperatures.view(-1, 1), -1))
    assert found.data_ptr() == chain[1].data_ptr()
    assert not chain[0].any()
    assert not chain[2].any()


@pytest.mark.parametrize("vocabulary", [1, 7, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 5])
def test_a_sure_token_is_drawn(vocabulary: int) -> None:
    weights = torch.eye(vocabulary) * 1e-30
    assert draw(weights).tolist() == list(range(vocabulary))


@pytest.mark.parametrize("vocabulary", [256, 768, 1000])
def test_argmax_is_the_first_of_the_largest(vocabulary: int) -> None:
    logits = torch.randn(64, 3, vocabulary).round()
    assert torch.equal(argmax(logits), logits.argmax(-1))


def one_hot(*tokens: int, vocabulary: int = 4) -> Any:
    """[1, len(tokens), vocabulary]."""
    return torch.nn.functional.one_hot(torch.tensor([tokens]), vocabulary).float()


@pytest.mark.parametrize(
    ("target", "emitted"),
    [((1, 2, 3), [1, 2, 3]), ((1, 0, 3), [1, 0]), ((2, 2, 3), [2])],
)
def test_greedy_chains_verified_both_ways(target: tuple[int, ...], emitted: list[int]) -> None:
    drafted = torch.tensor([[1, 2]])
    for tokens, lengths in (
        verify(drafted, one_hot(1, 2), one_hot(*target)),
        verify_greedy(drafted, torch.tensor([target])),
    ):
        assert tokens.shape == (1, 3)
        assert tokens[0, : int(lengths[0])].tolist() == emitted


def test_equal_distributions_accept_all() -> None:
    q = torch.softmax(torch.randn(500, 3, 9), -1)
    p = torch.cat([q, one_hot(4, vocabulary=9).expand(500, 1, 9)], 1)
    drafted = torch.multinomial(q.flatten(0, 1), 1).view(500, 3)
    emitted, lengths = verify(drafted, q, p)
    assert lengths.eq(4).all()
    assert torch.equal(emitted[:, :3], drafted)
    assert emitted[:, 3].eq(4).all()


def test_a_residual_of_zero_is_the_target() -> None:
    """p and q differ by rounding, q is the larger everywhere: after a rejection p is drawn from."""
    p = torch.tensor([[[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]]).expand(200, 2, 3)
    q = torch.tensor([[[1e-9, 0.5, 0.5]]]).expand(200, 1, 3)
    emitted, lengths = verify(torch.zeros(200, 1, dtype=torch.long), q, p)
    assert lengths.eq(1).all()
    assert set(emitted[:, 0].tolist()) == {1, 2}


def test_the_generator_decides() -> None:
    p, q = torch.softmax(torch.randn(64, 5, 600), -1), torch.softmax(torch.randn(64, 4, 600), -1)
    drafted = torch.randint(600, (64, 4))
    one, same, other = (verify(drafted, q, p, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one[0], same[0])
    assert not torch.equal(one[0], other[0])
