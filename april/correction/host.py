"""What the correction needs of a host's parsed arguments, and setting the host's own flags for it."""

from __future__ import annotations

from argparse import Namespace

from april.correction.settings import Correction, Method, from_args
from april.errors import UsageError

HOOK = "april.correction.hook.correct"
"""The value of the host's ``--custom-tis-function-path``."""
ROLLOUT = "april.rollout.generate_rollout"


def lacks(args: Namespace) -> str | None:
    """Why the host of this namespace cannot weigh tokens, or None where it can."""
    for name in ("use_tis", "custom_tis_function_path"):
        if not hasattr(args, name):
            return f"it has no --{name.replace('_', '-')}"
    return None


def arm(args: Namespace) -> Correction:
    """Check the correction against the host's parsed flags, and set the host's flags that it needs.

    Call it once after the host's parser; the host's own check of its flags has passed then, so what it forbids in
    combination is checked here too. Nothing is set for ``none`` and ``mask``.

    Raises UsageError where the host cannot do what was asked for.
    """
    settings = from_args(args)
    if settings.method is Method.NONE:
        return settings
    if fault := _no_versions(args) or (_no_weights(args) if settings.weighs else None):
        raise UsageError(f"--april-correction {settings.method.value} does not work here: {fault}")
    if settings.weighs:
        args.use_tis = True
        args.custom_tis_function_path = HOOK
    return settings


def _no_versions(args: Namespace) -> str | None:
    rollout = getattr(args, "rollout_function_path", ROLLOUT)
    return None if rollout == ROLLOUT else f"{rollout} keeps no policy versions; use --april on"


def _no_weights(args: Namespace) -> str | None:
    if missing := lacks(args):
        return f"the host lacks its hook ({missing}); use --april-correction none or mask"
    path = args.custom_tis_function_path
    if path not in (None, HOOK):
        return f"--custom-tis-function-path {path} stands in its place; give one of the two"
    if args.use_tis and path is None:
        return "--use-tis asks for the host's own weights; leave it out (--april-correction-numerics weighs all tokens)"
    if getattr(args, "use_rollout_logprobs", False):
        return (
            "--use-rollout-logprobs puts the engine's log probabilities in place of the trainer's, so that there is no "
            "proximal policy beside the behaviour policy; leave it out"
        )
    if getattr(args, "recompute_logprobs_via_prefill", False):
        return "--recompute-logprobs-via-prefill replaces each leg's own log probabilities; leave it out"
    loss = getattr(args, "loss_type", "policy_loss")
    if loss != "policy_loss":
        return f"--loss-type {loss} does not call the host's TIS hook; use policy_loss"
    return None
