"""Lags from the rollout to the loss, through the real code of slime and miles: conversion, split, batch, policy loss.

As a program (``test_tis_hook.py slime|miles``) it runs the checks on that host, in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from april.launch.environment.paths import miles_root

pytestmark = [pytest.mark.contract, pytest.mark.slow]
VOCABULARY = 11
VERSION = 5
DENOMINATORS = ("rollout_mask_sums", "group_mask_sums")
"""slime's since 0.3.1, and before."""
# (policy version, tokens) of each leg, log pi_old - log mu of its tokens; the prompt has two tokens.
RESPONSES = {
    "mixed": [(3, 2, 0.3), (5, 2, 0.02)],
    "fresh": [(5, 4, 0.02)],
    "too far": [(2, 3, 2.0), (5, 1, 0.0)],
}
FLAGS = {"april_correction_decay": 0.9, "april_correction_reject": [0.25, 4.0]}


def folders(host: str) -> list[Path]:
    """What the host needs on the module search path; skips where it is not there."""
    miles = miles_root()
    if miles is None:
        pytest.skip("miles is not set up: run `make setup`")
    if host == "miles":
        return [miles]
    if not (slime := os.environ.get("SLIME_DIR")):
        pytest.skip("SLIME_DIR is not set")
    return [Path(slime).resolve(), miles]


def run(host: str, *more: str) -> Any:
    """What this file prints as a program on that host."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, folders(host))),
        "APRIL_HOST": host,
        "APRIL_DEVICE": "cpu",
        "SLIME_ACCELERATOR": "cpu",
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    command = [sys.executable, __file__, host, *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=["slime", "miles"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    report: dict[str, Any] = run(request.param)
    return report


@pytest.mark.parametrize("host", ["slime", "miles"])
def test_two_context_parallel_ranks_weigh_as_one(host: str, tmp_path: Path) -> None:
    folders(host)
    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(lambda rank: run(host, str(tmp_path / "meeting"), rank), ("0", "1")))
    whole = ranks[0]["whole"]
    assert whole["masks"] == [[1] * 13, [0] * 9]
    for i, weights in enumerate(whole["weights"]):
        # Each token is on one rank; which one is the host's business.
        pieces = [rank["part"]["weights"][i] for rank in ranks]
        assert sorted(x for piece in pieces for x in piece) == pytest.approx(sorted(weights), rel=1e-5)
        assert all(0 < len(piece) < len(weights) for piece in pieces)
    assert [rank["part"]["masks"] for rank in ranks] == [whole["masks"]] * 2


def test_on_policy_tokens_have_the_very_gradient_of_the_host(found: dict[str, Any]) -> None:
    plain, weighed = found["none"]["gradients"], found["tis"]["gradients"]
    assert any(map(any, plain["fresh"]))
    assert weighed["fresh"] == plain["fresh"]
    assert weighed["mixed"][2:] == plain["mixed"][2:]


def test_off_policy_tokens_have_their_weight(found: dict[str, Any]) -> None:
    plain, weighed = found["none alone"]["gradients"], found["tis alone"]["gradients"]
    weight = math.exp(0.3) * 0.9**2
    for before, after in zip(plain["mixed"][:2], weighed["mixed"][:2], strict=True):
        # miles, and slime before 0.3.1, compute these gradients in bfloat16.
        assert after == pytest.approx([weight * value for value in before], rel=1e-2)
    mean = (2 * weight + 2) / 4 + 1 + 0
    assert found["tis alone"]["metrics"]["april_weight"] == pytest.approx(mean, rel=1e-5)


def test_a_rejected_response_has_no_gradient_not_even_of_its_entropy_and_kl(found: dict[str, Any]) -> None:
    assert any(map(any, found["none"]["gradients"]["too far"]))
    assert not any(map(any, found["tis"]["gradients"]["too far"]))


def test_the_host_reports_our_metrics(found: dict[str, Any]) -> None:
    metrics = found["tis"]["metrics"]
    # Sums over responses of the mean of each: 2/4 + 0 + 3/4 of the tokens are off-policy.
    assert metrics["april_off_policy"] == pytest.approx(1.25)
    assert metrics["april_counted"] == pytest.approx(3.0)
    assert metrics["april_rejected"] == pytest.approx(1.0)
    assert metrics["april_lag"] == pytest.approx((2 + 2) / 4 + 3 * 3 / 4)
    assert not any(name.startswith("april_") for name in found["none"]["metrics"])


def test_without_correction_the_host_is_untouched(found: dict[str, Any]) -> None:
    assert found["none"]["gradients"] == found["untagged"]["gradients"]
    assert found["none"]["metrics"] == found["untagged"]["metrics"]


def test_masked_tokens_have_no_gradient(found: dict[str, Any]) -> None:
    masked = found["mask"]["gradients"]
    assert masked["fresh"] == found["none"]["gradients"]["fresh"]
    assert not any(map(any, masked["mixed"][:2]))
    assert all(map(any, masked["mixed"][2:]))


# ---- the program ----


class Arguments(Namespace):
    """Whatever else the host asks for is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "april_")):
            raise AttributeError(name)
        return None


def arguments(method: str, alone: bool) -> Any:
    from april.correction import host

    args = Arguments(
        april_correction=method,
        custom_tis_function_path=None,
        use_tis=False,
        loss_type="policy_loss",
        rollout_function_path="april.rollout.generate_rollout",
        advantage_estimator="grpo",
        n_samples_per_prompt=1,
        rollout_batch_size=3,
        global_batch_size=3,
        micro_batch_size=3,
        rollout_top_p=1.0,
        rollout_temperature=1.0,
        log_probs_chunk_size=-1,
        true_on_policy_mode=False,
        data_pad_size_multiplier=1,
        eps_clip=0.2,
        eps_clip_high=0.2,
        # Not alone: both give gradients to every token that the masks count; a rejected response must have none.
        entropy_coef=0.0 if alone else 0.01,
        use_kl_loss=not alone,
        kl_loss_coef=0.1,
        kl_loss_type="k3",
        qkv_format="thd",
        rollout_data_transport="object-store",
        calculate_per_token_loss=False,
        use_dynamic_global_batch_size=False,
        allgather_cp=False,
    )
    if method == "tis":
        vars(args).update(FLAGS)
    host.arm(args)
    return args


def sample_of(host: str, number: int, legs: list[tuple[int, int, float]], logits: Any) -> Any:
    """A sample of the host, with the log probabilities that its legs' engines gave."""
    import torch

    from april import samples
    from april.core import Leg

    kind = importlib.import_module(f"{host}.utils.types").Sample
    length = sum(count for _, count, _ in legs)
    tokens = [(3 * number + i) % VOCABULARY for i in range(2 + length)]
    log_probs = torch.log_softmax(logits, -1)
    distance = [gap for _, count, gap in legs for _ in range(count)]
    mu = [log_probs[1 + i, tokens[2 + i]].item() - distance[i] for i in range(length)]
    made = kind(index=number, group_index=number, prompt="x", tokens=tokens, response_length=length, reward=1.0)
    made.rollout_log_probs, made.status = mu, kind.Status.COMPLETED
    if hasattr(made, "rollout_id"):
        made.rollout_id = number
    starts = [sum(count for _, count, _ in legs[:i]) for i in range(len(legs))]
    written = [Leg(version, start, count, 0) for start, (version, count, _) in zip(starts, legs, strict=True)]
    samples.note(made, legs=[leg.to_dict() for leg in written])
    return made


def through(host: str, method: str, tagged: bool = True, alone: bool = False) -> dict[str, Any]:
    """Gradient of the loss on each response token's logits, and the host's metrics; policy loss only if ``alone``."""
    import torch

    from april import samples
    from april.core import Group, RoundPlan, RoundResult
    from april.correction.settings import from_args
    from april.rollout import _training_data
    from april.staleness import StalenessPolicy

    args = arguments(method, alone)
    generator = torch.Generator().manual_seed(7)
    sizes = [2 + sum(count for _, count, _ in legs) for legs in RESPONSES.values()]
    logits = [torch.randn(size, VOCABULARY, generator=generator) for size in sizes]
    made = [sample_of(host, i, legs, logits[i]) for i, legs in enumerate(RESPONSES.values())]
    if tagged:
        plan = RoundPlan(rollout_id=1, policy_version=VERSION, target=3, over_sampling=3, max_response_len=9)
        groups = [Group(i, [samples.trajectory(one)]) for i, one in enumerate(made)]
        _training_data(RoundResult(plan=plan, trained=groups), StalenessPolicy(), from_args(args))
    batch = batch_of(host, args, made)
    batch["advantages"] = [torch.full((len(part),), 1.5) for part in batch["rollout_log_probs"]]
    batch["ref_log_probs"] = [part - 0.1 for part in batch["rollout_log_probs"]]
    flat = torch.cat(logits).unsqueeze(0).requires_grad_()
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    if host == "miles":  # slime takes them from the loss itself in a single step
        batch["log_probs"] = [
            torch.log_softmax(logits[i][1:-1], -1).gather(1, torch.tensor(made[i].tokens[2:])[:, None]).squeeze(1)
            for i in range(len(made))
        ]
    loss, metrics = policy_loss(host, args, batch, flat)
    loss.backward()
    rows = {
        name: flat.grad[0, offset + 1 : offset + size - 1].tolist()
        for name, offset, size in zip(RESPONSES, offsets, sizes, strict=True)
    }
    return {"gradients": rows, "metrics": {name: float(value) for name, value in metrics.items()}}


def batch_of(host: str, args: Any, made: list[Any]) -> dict[str, Any]:
    """The micro-batch that the host's trainer makes of these samples."""
    import cloudpickle

    rollout = importlib.import_module(f"{host}.ray.rollout")
    manager = rollout.RolloutManager.__ray_metadata__.modified_class
    parallel = {"dp_size": 1, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    this = Namespace(
        args=args,
        train_parallel_config=parallel,
        custom_convert_samples_to_train_data_func=None,
        _post_process_rewards=lambda given: ([1.0] * len(given), [1.0] * len(given)),
    )
    rollout.ray.put = lambda value, **_: cloudpickle.dumps(value)
    rollout.ray.get = cloudpickle.loads
    data = manager._convert_samples_to_train_data(this, made)
    if host == "slime":
        boxes = manager._split_train_data_by_dp(this, data)
        actor = importlib.import_module("slime.backends.megatron_utils.actor").MegatronTrainRayActor
        received = actor._get_rollout_data(Namespace(args=args), boxes)
        module = importlib.import_module("slime.backends.megatron_utils.data")
        iterator = module.get_data_iterator(received)[0]
    else:
        boxes = manager._split_train_data_by_dp(this, data, 1)
        module = importlib.import_module("miles.backends.training_utils.data")
        received = module.get_rollout_data(args, boxes)
        iterator = module.DataIterator(received, 3)
    keys = ["tokens", "total_lengths", "response_lengths", "loss_masks", "rollout_log_probs"]
    keys += [name for name in DENOMINATORS if name in received]
    batch: dict[str, Any] = module.get_batch(iterator, keys, 1)
    return batch


def policy_loss(host: str, args: Any, batch: dict[str, Any], logits: Any) -> tuple[Any, dict[str, Any]]:
    part = "megatron_utils" if host == "slime" else "training_utils"
    module = importlib.import_module(f"{host}.backends.{part}.loss")
    reduction = importlib.import_module(f"{host}.backends.{part}.cp_utils").get_sum_of_sample_mean
    first = batch["total_lengths"], batch["response_lengths"], batch["loss_masks"]
    reducer = reduction(*first, *(batch[name] for name in DENOMINATORS if name in batch))
    result: tuple[Any, dict[str, Any]] = module.policy_loss_function(args, batch, logits, reducer)
    return result


def start_groups(host: str, rank: int, size: int, meeting: str) -> None:
    """Process groups on a CPU, with all ranks in the context parallel one."""
    import torch
    import torch.distributed as dist

    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[assignment, method-assign]
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    from megatron.core import mpu

    mpu.initialize_model_parallel(context_parallel_size=size)
    if host == "miles":
        parallel = importlib.import_module("miles.backends.training_utils.parallel")
        alone = parallel.GroupInfo(rank=0, size=1, group=mpu.get_tensor_model_parallel_group())
        state = dict.fromkeys(("intra_dp", "intra_dp_cp", "cp", "tp", "pp", "ep", "etp"), alone)
        state["cp"] = parallel.GroupInfo(rank=rank, size=size, group=mpu.get_context_parallel_group())
        parallel.set_parallel_state(parallel.ParallelState(**state))


def one_rank(host: str, meeting: str, rank: int) -> dict[str, Any]:
    """The hook on two responses, whole and on one of two ranks. Of the second each rank holds what it must reject."""
    whole = weighed(host)
    start_groups(host, rank, 2, f"file://{meeting}")
    return {"whole": whole, "part": weighed(host)}


def weighed(host: str) -> dict[str, Any]:
    """What the hook makes of this rank's parts."""
    import torch

    from april.correction.hook import correct
    from april.correction.lags import LaggedLength

    folder = "megatron_utils" if host == "slime" else "training_utils"
    cut = importlib.import_module(f"{host}.backends.{folder}.cp_utils").slice_log_prob_with_cp
    running = torch.distributed.is_initialized()
    more: dict[str, Any] = {}
    if host == "miles":
        parallel = importlib.import_module("miles.backends.training_utils.parallel")
        state = parallel.get_parallel_state() if running else Namespace(cp=Namespace(size=1))
        more = {"parallel_state": state, "max_seq_lens": None}
    lengths: list[int] = [LaggedLength([(2, 3), (1, 4), (0, 6)]), LaggedLength([(3, 5), (0, 4)])]
    totals = [length + 3 for length in lengths]
    gaps = [torch.linspace(-0.5, 0.5, 13), torch.tensor([0.1, 0.1, 3.0, 3.0, 3.0, 0, 0, 0, 0])]
    if running:
        gaps = [cut(*one) for one in zip(gaps, totals, lengths, strict=True)]
    loss, masks, _ = correct(
        Namespace(april_correction="tis", april_correction_reject=[0.4, 2.5], qkv_format="thd"),
        pg_loss=torch.ones(sum(map(len, gaps))),
        train_log_probs=gaps,
        rollout_log_probs=[torch.zeros(len(gap)) for gap in gaps],
        loss_masks=[torch.ones(length, dtype=torch.int) for length in lengths],
        total_lengths=totals,
        response_lengths=lengths,
        **more,
    )
    parts = loss.split([len(gap) for gap in gaps])
    return {"weights": [part.tolist() for part in parts], "masks": [mask.tolist() for mask in masks]}


def main(host: str, meeting: str | None = None, rank: str = "0") -> None:
    from april.patches import boot

    boot.install()
    if meeting is not None:
        print(json.dumps(one_rank(host, meeting, int(rank))))
        return
    start_groups(host, 0, 1, "tcp://127.0.0.1:0")
    report: dict[str, Any] = {method: through(host, method) for method in ("none", "mask", "tis")}
    report |= {f"{method} alone": through(host, method, alone=True) for method in ("none", "tis")}
    report["untagged"] = through(host, "none", tagged=False)
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
