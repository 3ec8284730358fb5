"""miles (radixark's fork of slime on PyPI) as the host.

Its wheel carries no train.py, so the loop over its public functions is ours, in the order that slime's has. It also
carries Megatron-LM, core and training.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.errors import UsageError
from april.hosts import AddArguments, Lack


@dataclass(frozen=True, slots=True)
class Miles:
    """miles unpacked in ``root`` (``miles/``, ``megatron/``, ``miles_plugins/``, ``miles_megatron_plugins/``)."""

    root: Path
    version: str
    name: str = "miles"
    lacks: tuple[Lack, ...] = (
        Lack("--update-weight-transport disk", "miles syncs weights by tensor or broadcast only"),
        Lack("--rollout-sample-hook-path", "miles has no sample hooks"),
        Lack("top-p replay", "miles' Sample has no top-p fields"),
        Lack("train_async.py", "miles' wheel carries no training scripts"),
    )

    def paths(self) -> list[Path]:
        """The unpacked wheel."""
        return [self.root]

    def environment(self, device: str) -> dict[str, str]:
        """miles binds to the address that it finds by itself unless told."""
        return {"MILES_HOST_IP": "127.0.0.1"} if device == "cpu" else {}

    def cpu_flags(self) -> list[str]:
        """Weights are converted by miles' own tables, not by megatron.bridge."""
        return ["--megatron-to-hf-mode", "raw"]

    def parse_args(self, add_arguments: AddArguments) -> Namespace:
        """miles' own parser."""
        from miles.utils.arguments import parse_args

        args: Namespace = parse_args(add_custom_arguments=add_arguments)
        return args

    def train(self, args: Namespace, ready: Callable[[], None], asynchronous: bool = False) -> None:
        """The training loop."""
        if asynchronous:
            raise UsageError("--async: miles' wheel carries no asynchronous training loop; use --host slime")
        asyncio.run(_train(args, ready))


async def _train(args: Any, ready: Callable[[], None]) -> None:
    from miles.ray.placement_group import create_placement_groups, create_rollout_manager, create_training_models
    from miles.utils.logging_utils import configure_logger
    from miles.utils.tracking_utils import finish_tracking, init_tracking

    configure_logger()
    groups = create_placement_groups(args)
    init_tracking(args)
    manager, rollouts_per_epoch = create_rollout_manager(args, groups["rollout"])
    if args.debug_rollout_only:
        await manager.set_train_parallel_config.remote({"dp_size": 1})
        actor = critic = None
        first = args.start_rollout_id or 0
    else:
        actor, critic = await create_training_models(args, groups, manager)
        if args.offload_rollout:
            await manager.onload_weights.remote()
        await actor.update_weights()
        if args.check_weight_update_equal:
            await manager.check_weights.remote(action="compare")
        if args.offload_rollout:
            await manager.onload_kv.remote()
        first = args.start_rollout_id
    ready()
    if args.num_rollout == 0 and args.eval_interval is not None:
        await manager.eval.remote(0)
    for rollout_id in range(first, args.num_rollout):
        await _step(args, rollout_id, manager, actor, critic, rollouts_per_epoch)
    await manager.dispose.remote()
    finish_tracking()


async def _step(args: Any, rollout_id: int, manager: Any, actor: Any, critic: Any, per_epoch: int | None) -> None:
    """One rollout and, unless rollouts alone are debugged, one training step and weight sync."""
    from miles.utils.misc import should_run_periodic_action

    if args.eval_interval is not None and rollout_id == 0 and not args.skip_eval_before_train:
        await manager.eval.remote(rollout_id)
    data = await manager.generate.remote(rollout_id)
    if actor is None:
        return
    if args.offload_rollout:
        await manager.offload.remote()
    actor_trains = critic is None or rollout_id >= args.num_critic_only_steps
    trained = [group.train(rollout_id, data) for group in (critic, actor if actor_trains else None) if group]
    await asyncio.gather(*trained)
    if should_run_periodic_action(rollout_id, args.save_interval, per_epoch, args.num_rollout):
        last = rollout_id == args.num_rollout - 1
        for group in (actor if actor_trains else None, critic):
            if group is not None:
                await group.save_model(rollout_id, force_sync=last)
        if args.rollout_global_dataset:
            await manager.save.remote(rollout_id)
    if args.offload_train:
        await (actor if actor_trains else critic).offload()
    else:
        await (actor if actor_trains else critic).clear_memory()
    if args.offload_rollout:
        await manager.onload_weights.remote()
    await actor.update_weights()
    if args.offload_rollout:
        await manager.onload_kv.remote()
    if should_run_periodic_action(rollout_id, args.eval_interval, per_epoch):
        await manager.eval.remote(rollout_id)
