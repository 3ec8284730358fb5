"""The host's data source with a buffer of partials in front of it.

A group that a round gives back is handed out again before any new prompt, and is part of the host's checkpoint: after a
restart the same partials are there, and no prompt of the epoch is skipped or trained twice.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from april import learned, samples
from april.buffer import checkpoint, database, reader
from april.buffer.codec import SampleCodec
from april.buffer.durable import DurableBuffer
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
    """Our half of the class; the other half is the host's RolloutDataSource, next in line.

    The rollout function tells it the end of each round (``end_round``), since the host may save a round only when the
    next one has run.
    """

    Sample: Any
    load_function: Any

    def __init__(self, args: Any) -> None:
        super().__init__(args)  # type: ignore[call-arg]
        self.args = args
        self.clock = VersionClock()
        self.buffer = self._open()
        self._ended: set[int] = set()

    def _open(self) -> DurableBuffer:
        config = from_args(self.args)
        folder = checkpoint.live(config.buffer_dir, getattr(self.args, "save", None))
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="april-buffer-")
            folder = Path(self._temporary.name)
            logger.info("neither --save nor a run directory: the buffer is in %s, and ends with the run", folder)
        most = config.buffer_max_gb
        max_bytes = None if most is None else int(most * 1e9)
        buffer = DurableBuffer(folder, SampleCodec(self.Sample), config.max_response_len, max_bytes)
        # What an earlier run left there counts only where ``load`` asks for it.
        buffer.restore([])
        return buffer

    # Groups

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
            # By samples a group is trained in parts: those trained before are missing in what comes back.
            whole = samples.group_of(group)
            if len(group) != size and not 0 < whole.earlier < size:
                raise AprilError(f"a group of {len(group)} samples came back, --n-samples-per-prompt is {size}")
        self.buffer.put([samples.group_of(group) for group in groups])

    def get_buffer_length(self) -> int:
        """Groups in the buffer; the hosts' own name for it."""
        return len(self.buffer)

    # Rounds and checkpoints

    def end_round(self, rollout_id: int) -> None:
        """The round is over: what is held now, and where the dataset and the versions stand, belongs to it."""
        self._commit(rollout_id)
        self._ended.add(rollout_id)

    def _commit(self, rollout_id: int | None) -> None:
        state = {"clock": self.clock.to_dict(), "dataset": self._stands_at(), "learned": learned.to_dict(self)}
        self.buffer.commit(rollout_id, state)

    def save(self, rollout_id: int | None) -> None:
        """Save the buffer, then the host's own state, both as they were at the end of that round.

        Where the host's is there, so is ours. A rollout function that does not tell the end of a round gets them as
        they are now.
        """
        if not self.args.rollout_global_dataset:
            return
        if rollout_id not in self._ended:
            self._commit(rollout_id)
        state = self.buffer.save(rollout_id, checkpoint.path_of(self.args.save, rollout_id))
        with self._standing_at(state["dataset"]):
            super().save(rollout_id)  # type: ignore[misc]

    def load(self, rollout_id: int | None = None) -> None:
        """Load the host's state and the buffer that belongs to it; complete a checkpoint that a crash cut short.

        Raises AprilError for a damaged file, or one that was saved with another state of the dataset.
        """
        super().load(rollout_id)  # type: ignore[misc]
        if not self.args.rollout_global_dataset or self.args.load is None:
            return
        folder = checkpoint.path_of(self.args.load, rollout_id)
        state = self._load(folder)
        unsaved = state is None
        if unsaved:
            state = self._left(rollout_id)
        if state is None:
            if self.sample_group_index:  # type: ignore[attr-defined]
                logger.warning(
                    "%s does not exist: prompts that were unfinished at the checkpoint are not resumed", folder
                )
            return
        self.clock = VersionClock.restore(state["clock"])
        learned.restore(self, state.get("learned", {}))
        logger.info("%d groups of the buffer restored, as at the end of round %s", len(self.buffer), rollout_id)
        if unsaved:
            # The run may be long over by the next checkpoint, and come back to this one.
            self.save(rollout_id)

    def _load(self, folder: Path) -> dict[str, Any] | None:
        """Fill the buffer from a checkpoint, of this version or an earlier one; None where there is none."""
        pickled = folder.with_suffix(".pkl")
        if (folder / database.FILE).exists():
            state = reader.state(folder)
            self._agree(state["dataset"], folder)
            self.buffer.load(folder)
        elif pickled.exists():
            state = checkpoint.read_pickle(pickled)
            self._agree(state["dataset"], pickled)
            decode = SampleCodec(self.Sample).parse
            self.buffer.restore([samples.group_of(decode(group)) for group in state["groups"]])
        else:
            return None
        return state

    def _left(self, rollout_id: int | None) -> dict[str, Any] | None:
        """Go back to a round that a crashed run ended but did not save: the model's checkpoint is written before ours.

        None where it is not kept, or belongs to another state of the dataset.
        """
        save, state = getattr(self.args, "save", None), self.buffer.state_at(rollout_id)
        if state is None or save is None or Path(save).resolve() != Path(self.args.load).resolve():
            return None
        if any(self._stands_at().values()) and self._stands_at() != state["dataset"]:
            return None
        self._agree(state["dataset"], self.buffer.folder)
        self.buffer.roll_back(rollout_id)
        return state

    def _agree(self, counters: dict[str, int], path: Path) -> None:
        if not any(self._stands_at().values()):
            # The host found no state of its own: a crash fell between our file and its. Ours tells where it stood.
            self._stand_at(counters)
            if self.args.rollout_shuffle and getattr(self, "dataset", None) is not None:
                self.dataset.shuffle(counters["epoch_id"])  # type: ignore[attr-defined]
        elif counters != (found := self._stands_at()):
            raise AprilError(f"{path} was saved with the dataset at {counters}, the host's state is at {found}")

    def _stands_at(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in COUNTERS}

    def _stand_at(self, counters: dict[str, int]) -> None:
        for name, value in counters.items():
            setattr(self, name, value)

    @contextlib.contextmanager
    def _standing_at(self, counters: dict[str, int]) -> Iterator[None]:
        now = self._stands_at()
        self._stand_at(counters)
        try:
            yield
        finally:
            self._stand_at(now)
