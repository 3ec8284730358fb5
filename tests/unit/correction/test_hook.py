"""The hook on small tensors: exactness, truncation, rejection, and slices under context parallelism."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import types
from argparse import Namespace
from typing import Any

import pytest
import torch

from april.core import Leg
from april.correction.hook import correct
from april.correction.lags import LaggedLength, runs_of
from april.errors import AprilError

LEGS = (Leg(3, 0, 2, 7), Leg(5, 2, 3, 9))


def call(lengths: list[int], pi_old: list[list[float]], mu: list[list[float]], **changes: Any) -> Any:
    masks = changes.pop("masks", [[1] * len(part) for part in mu])
    args = Namespace(**{"april_correction": "tis", **changes.pop("args", {})})
    loss = changes.pop("loss", torch.ones(sum(map(len, mu))))
    return correct(
        args,
        pg_loss=loss,
        train_log_probs=[torch.tensor(part) for part in pi_old],
        rollout_log_probs=[torch.tensor(part) for part in mu],
        loss_masks=[torch.tensor(mask, dtype=torch.int) for mask in masks],
        total_lengths=[length + 4 for length in lengths],
        response_lengths=lengths,
        **changes,
    )


def test_a_length_knows_its_lags_and_is_an_integer() -> None:
    length = LaggedLength.of(LEGS, 5)
    assert length == 5
    assert length.lags == [2, 2, 0, 0, 0]
    assert runs_of(length) == ((2, 2), (0, 3))
    for same in (pickle.loads(pickle.dumps(length)), copy.copy(length), copy.deepcopy(length)):
        assert same == 5
        assert same.runs == length.runs
    assert [part.numel() for part in torch.ones(7).split([length, 2])] == [5, 2]
    assert torch.tensor([length]).dtype == torch.int64
    assert LaggedLength(()) == 0
    assert LaggedLength.of([Leg(6, 0, 1, 1)], 5).lags == [0]


def test_a_length_without_lags_is_never_corrected() -> None:
    with pytest.raises(AprilError, match="a response of 3 tokens reached the loss without its policy versions"):
        call([3], [[0.0] * 3], [[0.0] * 3])


def test_each_leg_has_its_own_ratio_and_on_policy_tokens_weigh_one() -> None:
    length = LaggedLength.of(LEGS, 5)
    mu = [-1.0, -1.0, -1.0, -1.0, -1.0]
    pi_old = [-1.0 + math.log(1.5), -1.0 + math.log(0.5), -1.001, -3.0, -1.0]
    loss, masks, metrics = call([length], [pi_old], [mu])
    assert loss.tolist() == pytest.approx([1.5, 0.5, 1, 1, 1])
    assert loss[2:].tolist() == [1.0, 1.0, 1.0]
    assert masks[0].tolist() == [1] * 5
    assert metrics["april_off_policy"].tolist() == [1, 1, 0, 0, 0]
    assert metrics["april_lag"].tolist() == [2, 2, 0, 0, 0]


def test_truncation_comes_before_decay() -> None:
    length = LaggedLength([(2, 3)])
    pi_old = [math.log(100), math.log(1e-9), 0.0]
    args = {"april_correction_clip": (0.5, 2.0), "april_correction_decay": 0.9}
    loss, _, metrics = call([length], [pi_old], [[0.0] * 3], args=args)
    assert loss.tolist() == pytest.approx([2 * 0.81, 0.5 * 0.81, 0.81])
    assert metrics["april_clipped"].tolist() == [1, 1, 0]


def test_numerics_weigh_on_policy_tokens_when_asked() -> None:
    length = LaggedLength([(0, 2)])
    args = {"april_correction_numerics": True, "april_correction_decay": 0.9}
    loss, _, _ = call([length], [[math.log(1.25), 0.0]], [[0.0, 0.0]], args=args)
    assert loss.tolist() == pytest.approx([1.25, 1.0])


def test_decoupled_is_the_ratio_truncated_from_above() -> None:
    length = LaggedLength([(1, 2), (0, 1)])
    pi_old = [math.log(9), math.log(1e-3), -2.0]
    loss, _, _ = call([length], [pi_old], [[0.0] * 3], args={"april_correction": "decoupled"})
    assert loss.tolist() == pytest.approx([2.0, 1e-3, 1.0])


def test_a_rejected_response_has_no_weight_anywhere_and_its_neighbour_all() -> None:
    """cases 8: the on-policy tokens of a rejected response go too; its loss may even be no number."""
    lengths: list[int] = [LaggedLength([(1, 2), (0, 2)]), LaggedLength([(1, 2)]), LaggedLength([(0, 2)])]
    pi_old = [[2.0, 1.0, 0.0, 0.0], [0.1, -0.1], [5.0, 5.0]]
    mu = [[0.0] * 4, [0.0] * 2, [0.0] * 2]
    loss = torch.ones(8)
    loss[0] = float("nan")
    args = {"april_correction_reject": (0.5, 2.0), "april_correction_clip": (0.0, 9.0)}
    out, masks, metrics = call(lengths, pi_old, mu, loss=loss, args=args)
    assert out[:4].tolist() == [0.0] * 4
    assert [mask.tolist() for mask in masks] == [[0] * 4, [1, 1], [1, 1]]
    assert [mask.dtype for mask in masks] == [torch.int] * 3
    assert metrics["april_rejected"].tolist() == [1] * 4 + [0] * 4
    assert out[4:6].tolist() == pytest.approx([math.exp(0.1), math.exp(-0.1)])
    assert out[6:].tolist() == [1.0, 1.0]


def test_a_mean_that_is_no_number_is_rejected() -> None:
    args = {"april_correction_reject": (0.5, 2.0)}
    out, masks, _ = call([LaggedLength([(1, 2)])], [[float("nan"), 0.0]], [[0.0, 0.0]], args=args)
    assert out.tolist() == [0.0, 0.0]
    assert masks[0].tolist() == [0, 0]


def test_tokens_that_the_loss_does_not_count_take_no_part() -> None:
    """Tool output has log probabilities that mean nothing."""
    length = LaggedLength([(1, 3)])
    args = {"april_correction_reject": (0.9, 1.1)}
    out, masks, metrics = call([length], [[-50.0, 0.0, 0.0]], [[0.0] * 3], masks=[[0, 1, 1]], args=args)
    assert out.tolist() == [1.0, 1.0, 1.0]
    assert masks[0].tolist() == [0, 1, 1]
    assert metrics["april_kl_off"].tolist() == [0, 0, 0]


def test_no_gradient_goes_through_the_weights() -> None:
    loss = torch.ones(2, requires_grad=True)
    pi_old = torch.tensor([0.5, 0.0], requires_grad=True)
    out, _, _ = correct(
        Namespace(april_correction="tis"),
        pg_loss=loss,
        train_log_probs=[pi_old],
        rollout_log_probs=[torch.zeros(2)],
        loss_masks=[torch.ones(2, dtype=torch.int)],
        total_lengths=[3],
        response_lengths=[LaggedLength([(1, 1), (0, 1)])],
    )
    out.sum().backward()
    assert loss.grad is not None
    assert loss.grad.tolist() == pytest.approx([math.exp(0.5), 1.0])
    assert pi_old.grad is None


def test_an_empty_micro_batch() -> None:
    assert call([LaggedLength(())], [[]], [[]], loss=torch.zeros(0))[0].numel() == 0
    out, masks, metrics = call([], [], [], loss=torch.zeros(0))
    assert out.numel() == 0
    assert masks == []
    assert all(values.numel() == 0 for values in metrics.values())


@pytest.mark.parametrize("name", ["slime.backends.megatron_utils.cp_utils", "miles.backends.training_utils.cp_utils"])
def test_context_parallel_ranks_decide_together(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Two ranks with half a response each: same weights as whole, and each knows that it is rejected."""
    halves = {0: slice(0, 3), 1: slice(3, 6)}
    lags = LaggedLength([(2, 4), (0, 2)])
    pi_old, mu = torch.tensor([0.9, 0.9, -0.1, -0.1, 0.0, 0.0]), torch.zeros(6)
    sums: dict[int, torch.Tensor] = {}

    def on_rank(rank: int, reject: tuple[float, float]) -> Any:
        def cut(values: torch.Tensor, total: int, response: int, *form: Any) -> torch.Tensor:
            assert form == (("thd", None) if "miles" in name else ())
            return values[halves[rank]]

        def cut_miles(values: torch.Tensor, total: int, response: int, qkv_format: str, longest: Any) -> torch.Tensor:
            return cut(values, total, response, qkv_format, longest)

        def all_reduce(values: torch.Tensor, group: str) -> None:
            assert group == "ranks"
            sums[rank] = values.clone()
            if len(sums) == 2:
                values.copy_(sums[0] + sums[1])

        mpu = types.SimpleNamespace(
            get_context_parallel_world_size=lambda: 2, get_context_parallel_group=lambda: "ranks"
        )
        module = types.SimpleNamespace(slice_log_prob_with_cp=cut_miles if "miles" in name else cut, mpu=mpu)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
        more = {"parallel_state": types.SimpleNamespace(cp=types.SimpleNamespace(size=2, group="ranks"))}
        args = Namespace(april_correction="tis", april_correction_reject=reject, qkv_format="thd")
        return correct(
            args,
            pg_loss=torch.ones(3),
            train_log_probs=[pi_old[halves[rank]]],
            rollout_log_probs=[mu[halves[rank]]],
            loss_masks=[torch.ones(6, dtype=torch.int)],
            total_lengths=[8],
            response_lengths=[lags],
            **(more if "miles" in name else {}),
        )

    for rank in (0, 1):  # the sums of both are known in the second call
        loss, masks, _ = on_rank(rank, (0.9, 1.1))
    # The mean over both is exp(0.4): out of bounds, though that of rank 1 alone, exp(-0.1), is inside.
    assert loss.tolist() == [0.0] * 3
    assert masks[0].tolist() == [0] * 6
    # Inside wider bounds, though that of rank 0 alone, exp(0.57), is not.
    loss, masks, _ = on_rank(0, (0.9, 1.6))
    assert loss.tolist() == pytest.approx([2.0, 2.0, math.exp(-0.1)])
    assert masks[0].tolist() == [1] * 6
