"""Flags, what they refuse, and what is set at the host."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

import pytest

from april import config
from april.correction import host
from april.correction.settings import Correction, Method, from_args
from april.errors import UsageError


def parsed(*flags: str) -> Namespace:
    return config.add_arguments(ArgumentParser()).parse_args(flags)


def test_flags_become_settings() -> None:
    args = parsed(
        *["--april-correction", "tis", "--april-correction-clip", "0.5", "4", "--april-correction-decay", "0.9"],
        *["--april-correction-reject", "0.8", "1.25", "--april-correction-numerics"],
    )
    assert from_args(args) == Correction(Method.TIS, (0.5, 4.0), 0.9, (0.8, 1.25), True)


def test_without_flags_nothing_is_corrected() -> None:
    assert from_args(Namespace()) == from_args(parsed()) == Correction()
    assert not Correction().weighs


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--april-correction tis --april-correction-clip 2 1", "--april-correction-clip is 2 1: it must be LO HI with"),
        ("--april-correction tis --april-correction-clip 0 inf", "--april-correction-clip is 0 inf: it must be LO HI"),
        ("--april-correction tis --april-correction-clip nan 2", "--april-correction-clip is nan 2: it must be LO HI"),
        ("--april-correction tis --april-correction-decay 0", "--april-correction-decay is 0: it must be above 0"),
        ("--april-correction tis --april-correction-decay 1.1", "--april-correction-decay is 1.1: it must be above 0"),
        ("--april-correction tis --april-correction-reject 1.2 2", "--april-correction-reject is 1.2 2: it must be LO"),
        ("--april-correction-decay 0.9", "--april-correction-decay needs --april-correction tis or decoupled"),
        (
            "--april-correction mask --april-correction-reject 0.5 2",
            "--april-correction-reject needs --april-correction",
        ),
        ("--april-correction mask --april-correction-clip 0 3", "--april-correction-clip needs --april-correction"),
        ("--april-correction mask --april-correction-numerics", "--april-correction-numerics needs"),
        ("--april-correction decoupled --april-correction-decay 0.9", "--april-correction-decay is 0.9: it must be 1"),
        (
            "--april-correction decoupled --april-correction-clip 0.5 2",
            "--april-correction-clip is 0.5 2: it must be 0",
        ),
    ],
)
def test_a_wrong_setting_names_its_flag(flags: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        from_args(parsed(*flags.split()))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_method_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="--april-correction is ppo: it must be one of none, mask, tis, decoupled"):
        from_args(Namespace(april_correction="ppo"))


def of_host(method: str, **changes: Any) -> Namespace:
    known = {
        "use_tis": False,
        "custom_tis_function_path": None,
        "use_rollout_logprobs": False,
        "loss_type": "policy_loss",
        "rollout_function_path": "april.rollout.generate_rollout",
    }
    return Namespace(april_correction=method, **{**known, **changes})


@pytest.mark.parametrize("method", ["tis", "decoupled"])
def test_the_hook_is_set_at_the_host_once(method: str) -> None:
    args = of_host(method)
    assert host.arm(args) == host.arm(args) == Correction(Method(method))
    assert args.use_tis
    assert args.custom_tis_function_path == "april.correction.hook.correct"


@pytest.mark.parametrize("method", ["none", "mask"])
def test_without_weights_the_hosts_own_flags_stay(method: str) -> None:
    args = of_host(method, use_tis=True, custom_tis_function_path="mine.tis")
    before = vars(args).copy()
    host.arm(args)
    assert vars(args) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_rollout_logprobs": True}, "no proximal policy beside the behaviour policy"),
        ({"custom_tis_function_path": "mine.tis"}, "--custom-tis-function-path mine.tis stands in its place"),
        ({"use_tis": True}, "--use-tis asks for the host's own weights"),
        ({"recompute_logprobs_via_prefill": True}, "replaces each leg's own log probabilities"),
        ({"loss_type": "sft_loss"}, "--loss-type sft_loss does not call"),
        ({"rollout_function_path": "april.rollout.generate_rollout_sync"}, "keeps no policy versions; use --april on"),
    ],
)
@pytest.mark.parametrize("method", ["tis", "decoupled"])
def test_what_cannot_work_is_refused_in_a_line(method: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=rf"^--april-correction {method} does not work here: .*{message}[^\n]*$"):
        host.arm(of_host(method, **changes))


def test_a_host_without_the_hook_is_named_and_can_mask() -> None:
    args = of_host("tis")
    del args.custom_tis_function_path
    assert host.lacks(args) == "it has no --custom-tis-function-path"
    with pytest.raises(UsageError, match=r"lacks its hook .* use --april-correction none or mask$"):
        host.arm(args)
    args.april_correction = "mask"
    assert host.arm(args).method is Method.MASK


def test_masking_needs_versions_too() -> None:
    with pytest.raises(UsageError, match="use --april on"):
        host.arm(of_host("mask", rollout_function_path="slime.rollout.sglang_rollout.generate_rollout"))


def test_settings_and_lags_load_no_torch() -> None:
    program = "import sys, april.config, april.correction.host, april.correction.lags; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
