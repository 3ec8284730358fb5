"""The host's data source with a buffer of partials in front of it.

A group that a round gives back is handed out again before any new prompt, and is part of the host's checkpoint: after a
restart the same partials are there, and no prompt of the epoch is skipped or trained twice.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from april import samples
from april.buffer import checkpoint
from april.buffer.memory import MemoryBuffer
from april.config import from_args
from april.core import Group
from april.errors import AprilError
from april.hosts.rollout import RolloutBindings, bindings
from april.staleness import VersionClock

logger = logging.getLogger(__name__)

# Where the host's data source stands in its dataset.
COUNTERS = ("epoch_id", "sample_group_index", "sample_index", "sample_offset")


def partial_data_source() -> type:
    """The data source class for the host of this process."""
    return _partial_data_source(bindings())


@functools.cache
def _partial_data_source(host: RolloutBindings) -> type:
    class PartialDataSource(_PartialDataSource, host.RolloutDataSource):  # type: ignore[misc, name-defined]
        """Groups from the buffer first, then the host's own next prompts."""

        Sample = host.Sample
        load_function = staticmethod(host.load_function)

    return PartialDataSource


class _PartialDataSource:
    """Our half of the class; the other half is the host's RolloutDataSource, next in line."""

    Sample: Any
    load_function: Any

    def __init__(self, args: Any) -> None:
        super().__init__(args)  # type: ignore[call-arg]
        self.args = args
        self.buffer = MemoryBuffer(from_args(args).max_response_len)
        self.clock = VersionClock()

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """``num_samples`` groups: buffered ones by priority (or as ``--buffer-filter-path`` says), then new prompts.

        Fewer only where the dataset is empty.
        """
        groups = [samples.payload(group) for group in self._take(num_samples)]
        while len(groups) < num_samples:
            # One at a time: asked for more than a whole epoch at once, the hosts return too few.
            new = super().get_samples(1)  # type: ignore[misc]
            if not new:
                break
            groups += new
        return groups

    def _take(self, count: int) -> list[Group]:
        path = getattr(self.args, "buffer_filter_path", None)
        if path is None:
            return self.buffer.take(count)
        held = [samples.payload(group) for group in self.buffer.snapshot()]
        chosen = self.load_function(path)(self.args, None, held, count) if held else []
        self.buffer.restore([samples.group_of(group) for group in held])
        return [samples.group_of(group) for group in chosen]

    def add_samples(self, groups: list[list[Any]]) -> None:
        """Keep groups for a later round. Raises AprilError for one of another size than ``--n-samples-per-prompt``."""
        size = self.args.n_samples_per_prompt
        for group in groups:
            if len(group) != size:
                raise AprilError(f"a group of {len(group)} samples came back, --n-samples-per-prompt is {size}")
        self.buffer.put([samples.group_of(group) for group in groups])

    def get_buffer_length(self) -> int:
        """Groups in the buffer; the hosts' own name for it."""
        return len(self.buffer)

    def save(self, rollout_id: int) -> None:
        """Save the buffer, then the host's own state: where the host's is there, so is ours."""
        if self.args.rollout_global_dataset:
            state = {
                "groups": [[_dump(member.payload) for member in group.members] for group in self.buffer.snapshot()],
                "clock": self.clock.to_dict(),
                "dataset": {name: getattr(self, name) for name in COUNTERS},
            }
            checkpoint.write(checkpoint.path_of(self.args.save, rollout_id), state)
        super().save(rollout_id)  # type: ignore[misc]

    def load(self, rollout_id: int | None = None) -> None:
        """Load the host's state and the buffer that belongs to it.

        Raises AprilError for a damaged file, or one that was saved with another state of the dataset.
        """
        super().load(rollout_id)  # type: ignore[misc]
        if not self.args.rollout_global_dataset or self.args.load is None:
            return
        path = checkpoint.path_of(self.args.load, rollout_id)
        if not path.exists():
            if self.sample_group_index:  # type: ignore[attr-defined]
                logger.warning(
                    "%s does not exist: prompts that were unfinished at the checkpoint are not resumed", path
                )
            return
        state = checkpoint.read(path)
        if not any(getattr(self, name) for name in COUNTERS):
            # The host found no state of its own: a crash fell between our file and its. Ours tells where it stood.
            self._stand_at(state["dataset"])
        found = {name: getattr(self, name) for name in COUNTERS}
        if state["dataset"] != found:
            raise AprilError(f"{path} was saved with the dataset at {state['dataset']}, the host's state is at {found}")
        self.buffer.restore(
            [samples.group_of([_parse(member, self.Sample) for member in group]) for group in state["groups"]]
        )
        self.clock = VersionClock.restore(state["clock"])
        logger.info("%d groups of the buffer restored from %s", len(self.buffer), path)

    def _stand_at(self, counters: dict[str, int]) -> None:
        for name, value in counters.items():
            setattr(self, name, value)
        dataset = getattr(self, "dataset", None)
        if self.args.rollout_shuffle and dataset is not None:
            dataset.shuffle(counters["epoch_id"])


def _dump(member: Any) -> Any:
    return [_dump(part) for part in member] if isinstance(member, list) else member.to_dict()


def _parse(data: Any, sample: Any) -> Any:
    return [_parse(part, sample) for part in data] if isinstance(data, list) else sample.from_dict(data)
