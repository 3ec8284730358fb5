"""``probabilities`` is what SGLang's own sampler draws from, and ``fallback_reason`` reads its real batch info."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from specrollout.sampling import Filters, fallback_reason, probabilities  # noqa: E402

pytestmark = pytest.mark.contract

ALL = 1 << 30
GREEDY = (1.0, 1, 1.0, 0.0)
PLAIN = (1.0, ALL, 1.0, 0.0)
VOCABULARY = 3000
"""More than the largest values that are looked at first."""

Row = tuple[float, int, float, float]


@pytest.fixture(scope="module")
def sglang() -> Any:
    """SGLang's modules of the sampler and its batch info."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    from april.patches.cpu.torchvision_ops import arm

    arm()
    import sglang.srt.layers.sampler as sampler
    import sglang.srt.sampling.sampling_batch_info as batch_info
    import sglang.srt.sampling.sampling_params as params

    return types.SimpleNamespace(sampler=sampler, info=batch_info.SamplingBatchInfo, params=params)


@pytest.fixture
def info(sglang: Any) -> Callable[..., Any]:
    """Makes SGLang's batch info of (temperature, top-k, top-p, min-p), as ``from_schedule_batch`` does."""

    def made(rows: list[Row], **more: Any) -> Any:
        temperatures, top_ks, top_ps, min_ps = (list(column) for column in zip(*rows, strict=True))
        return sglang.info(
            temperatures=torch.tensor(temperatures).view(-1, 1),
            top_ks=torch.tensor(top_ks, dtype=torch.int32),
            top_ps=torch.tensor(top_ps),
            min_ps=torch.tensor(min_ps),
            is_all_greedy=all(k <= 1 for k in top_ks),
            need_top_p_sampling=any(p != 1.0 for p in top_ps),
            need_top_k_sampling=any(k != ALL for k in top_ks),
            need_min_p_sampling=any(p > 0 for p in min_ps),
            vocab_size=VOCABULARY,
            device="cpu",
            **more,
        )

    return made


def drawn_from(sglang: Any, logits: Any, batch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The probabilities that SGLang's sampler hands to torch.multinomial, by token."""
    seen: dict[str, Any] = {}
    gather = torch.gather

    def multinomial(weights: Any, num_samples: int) -> Any:
        seen["weights"] = weights.clone()
        return torch.zeros(len(weights), 1, dtype=torch.long)

    def recorded(ids: Any, **rest: Any) -> Any:
        seen["ids"] = ids.long()
        return gather(ids, **rest)

    sampler = sglang.sampler.Sampler.__new__(sglang.sampler.Sampler)
    torch.nn.Module.__init__(sampler)
    sampler.rl_on_policy_target, sampler.use_ascend_backend = None, False
    sampler.use_log_softmax_logprob = sampler.enable_deterministic = False
    with monkeypatch.context() as patch:
        patch.setattr(sglang.sampler, "get_flags", lambda: types.SimpleNamespace(sampling_backend="pytorch"))
        patch.setattr(torch, "multinomial", multinomial)
        patch.setattr(torch, "gather", recorded)
        output = types.SimpleNamespace(next_token_logits=logits.clone())
        sampler.forward(output, batch, False, [0] * len(logits), [None] * len(logits), None)
    weights = seen["weights"]
    if "ids" in seen:
        weights = torch.zeros_like(weights).scatter_(1, seen["ids"], weights)
    return weights / weights.sum(-1, keepdim=True)


BATCHES: dict[str, list[Row]] = {
    "temperatures": [(0.3, ALL, 1.0, 0.0), PLAIN, (1.5, ALL, 1.0, 0.0)],
    "top-k": [
        (1.0, 5, 1.0, 0.0),
        (0.7, 63, 1.0, 0.0),
        (0.7, 64, 1.0, 0.0),
        (1.2, 1024, 1.0, 0.0),
        (1.0, 2900, 1.0, 0.0),
    ],
    "top-p": [(1.0, ALL, 0.1, 0.0), (0.5, ALL, 0.5, 0.0), (1.5, ALL, 0.9, 0.0), (1.0, ALL, 0.999, 0.0)],
    "min-p": [(1.0, ALL, 1.0, 0.05), (1.5, ALL, 1.0, 0.3), (0.4, ALL, 1.0, 1.0)],
    "top-k and top-p": [(1.0, 40, 0.8, 0.0), (1.0, 5, 0.99, 0.0), (1.4, 800, 0.3, 0.0)],
    "all": [(1.0, 40, 0.8, 0.02), (0.8, 200, 0.95, 0.1), (1.3, 2000, 0.97, 0.001)],
    "greedy among others": [GREEDY, PLAIN, (0.7, ALL, 0.9, 0.0), GREEDY, (1.0, 20, 1.0, 0.1)],
    "greedy beside plain": [GREEDY, PLAIN, (0.6, ALL, 1.0, 0.0)],
}


@pytest.mark.parametrize("spread", [1.0, 6.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("name", BATCHES)
def test_same_as_sglang(
    name: str, spread: float, sglang: Any, info: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = info(BATCHES[name])
    torch.manual_seed(0)
    logits = spread * torch.randn(len(batch), VOCABULARY)
    before = logits.clone()
    wanted = drawn_from(sglang, logits, batch, monkeypatch)
    found = probabilities(logits, Filters.of(batch))
    assert torch.equal(logits, before)
    assert found.dtype == torch.float32
    # SGLang cuts a row without top-p where its rounded sum exceeds 1: parts of 1e-6 in all.
    own = (batch.top_ps < 1).tolist()
    assert [torch.equal(f > 0, w > 0) for f, w, cut in zip(found, wanted, own, strict=True) if cut] == [True] * sum(own)
    assert (found - wanted).abs().sum(-1).max() < 3e-6


@pytest.mark.parametrize("row", [(1.0, 7, 1.0, 0.0), (1.0, ALL, 0.6, 0.0), (1.0, 900, 0.7, 0.0), GREEDY])
def test_ties_leave_as_many_tokens(
    row: Row, sglang: Any, info: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of a bf16 model are often equal: as many are kept as SGLang keeps, of the same probabilities."""
    batch = info([row, PLAIN])
    torch.manual_seed(1)
    logits = torch.randn(2, VOCABULARY).mul(3).round()
    wanted = drawn_from(sglang, logits, batch, monkeypatch)
    found = probabilities(logits, Filters.of(batch))
    torch.testing.assert_close(found.sort(-1).values, wanted.sort(-1).values, atol=1e-7, rtol=1e-5)


def test_a_row_is_the_same_at_every_position(info: Callable[..., Any]) -> None:
    batch = info(BATCHES["greedy among others"])
    filters = Filters.of(batch).repeat(3)
    logits = torch.randn(len(batch), VOCABULARY)
    found = probabilities(logits.repeat_interleave(3, 0), filters).unflatten(0, (-1, 3))
    torch.testing.assert_close(found[:, 0], found[:, 2])
    torch.testing.assert_close(found[:, 1], probabilities(logits, Filters.of(batch)))
    assert filters.greedy.tolist() == [True] * 3 + [False] * 6 + [True] * 3 + [False] * 3


def test_no_reason_to_fall_back(info: Callable[..., Any]) -> None:
    assert fallback_reason(info(BATCHES["all"])) is None
    assert fallback_reason(info([GREEDY, GREEDY])) is None


def test_sglangs_flashinfer_filters_as_we_read_it(sglang: Any) -> None:
    """Joint without min-p, one after the other with it: what ``fallback_reason`` goes by."""
    import inspect

    source = inspect.getsource(sglang.sampler.Sampler._sample_from_probs)
    assert 'filter_apply_order="joint"' in source
    assert (
        source.index("need_min_p_sampling")
        < source.index("top_k_renorm_prob")
        < source.index("min_p_sampling_from_probs")
    )


def test_temperature_zero_is_top_k_one(sglang: Any) -> None:
    made = sglang.params.SamplingParams(temperature=0.0)
    assert (made.temperature, made.top_k) == (1.0, 1)
    assert sglang.params.TOP_K_ALL == ALL
