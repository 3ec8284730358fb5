"""Each response as long as the trace says, and every call of the host remembered; the same for all modes.

The hosts have no hook between a sample and its request that would keep their own generation, so their ``generate`` is
wrapped, in the benchmark's process only: the request asks for the response's own length, and the end token does not end
it. The host subtracts what a resumed response has already. To the host such a response is truncated, which has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from april.launch.bench.account import Call
from april.patches.patcher import Patcher
from april.staleness import parse_version


class Forced:
    """Wraps the ``generate(args, sample, sampling_params)`` of a host's rollout module."""

    def __init__(self, lengths: Sequence[int], version: Callable[[], int]) -> None:
        self._lengths = lengths
        self._version = version
        self._calls: list[Call] = []
        self._patcher = Patcher()

    def install(self, module: ModuleType) -> None:
        """Start."""
        self._patcher.wrap(module, "generate", self.generate)

    def undo(self) -> None:
        """Stop."""
        self._patcher.undo()

    def take(self) -> list[Call]:
        """The calls since the last time."""
        taken, self._calls = self._calls, []
        return taken

    async def generate(
        self, original: Any, args: Any, sample: Any, sampling_params: dict[str, Any], **more: Any
    ) -> Any:
        """The wrapper."""
        forced = {**sampling_params, "max_new_tokens": self._lengths[sample.index], "ignore_eos": True}
        before, seen, started = sample.response_length, len(sample.weight_versions), time.time()
        done = await original(args, sample, forced, **more)
        versions = [parse_version(version) for version in done.weight_versions[seen:]]
        known = [version for version in versions if version is not None]
        version = known[-1] if known else self._version()
        self._calls.append(Call(done.index, before, done.response_length, version, started, time.time()))
        return done
