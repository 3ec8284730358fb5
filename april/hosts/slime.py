"""slime as the host: a source tree at the pinned commit, or an installed slime with its tree."""

from __future__ import annotations

import importlib.util
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.hosts import AddArguments, Lack


@dataclass(frozen=True, slots=True)
class Slime:
    """slime's tree at ``root`` (with ``train.py``); ``megatron``: where Megatron-LM is taken from, if anywhere."""

    root: Path
    version: str
    megatron: Path | None = None
    name: str = "slime"
    lacks: tuple[Lack, ...] = ()

    def paths(self) -> list[Path]:
        """slime's tree, then Megatron's where it is not installed."""
        return [self.root, *([self.megatron] if self.megatron else [])]

    def environment(self, device: str) -> dict[str, str]:
        """slime selects its accelerator and its address by environment."""
        return {"SLIME_ACCELERATOR": "cpu", "SLIME_HOST_IP": "127.0.0.1"} if device == "cpu" else {}

    def cpu_flags(self) -> list[str]:
        """None beside the common ones."""
        return []

    def parse_args(self, add_arguments: AddArguments) -> Namespace:
        """slime's own parser."""
        from slime.utils.arguments import parse_args

        args: Namespace = parse_args(add_custom_arguments=add_arguments)
        return args

    def train(self, args: Namespace, ready: Callable[[], None], asynchronous: bool = False) -> None:
        """slime's own train.py or train_async.py, told to call ``ready`` once its models are created."""
        script = _load_script(self.root / ("train_async.py" if asynchronous else "train.py"))
        create = script.create_training_models

        def create_and_report(*positional: Any, **keywords: Any) -> Any:
            models = create(*positional, **keywords)
            ready()
            return models

        script.create_training_models = create_and_report
        script.train(args)


def _load_script(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("slime_train_script", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script
