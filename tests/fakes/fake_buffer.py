"""What a buffer of groups does, in a page: the model that the durable one is compared with; and groups to put in it."""

from __future__ import annotations

import copy
import pickle
import random
from pathlib import Path
from typing import Any

from fake_data import Sample, Status

from april import samples
from april.buffer.codec import SampleCodec
from april.buffer.durable import DurableBuffer
from april.core import Group, priority

MAX_LEN = 64


def sample(index: int, length: int, version: int, ended: bool, **fields: Any) -> Sample:
    """A response of ``length`` tokens; without tokens a prompt."""
    made = Sample(group_index=index, index=index, prompt=str(index), **fields)
    if length or ended:
        made.tokens = list(range(index, index + length + 2))
        made.response, made.response_length = "x" * length, length
        made.rollout_log_probs = [-0.1 * number for number in range(length)]
        made.status = Status.COMPLETED if ended else Status.ABORTED
        made.reward = float(index) if ended else None
        leg = {"policy_version": version, "start": 0, "length": length, "rollout_id": version}
        made.metadata = {"task": index, "april": {"legs": [leg] if length else []}}
    return made


def group(index: int, lengths: tuple[int, ...] = (20,), version: int = 1, ended: bool = False) -> Group:
    """A group whose members have these lengths."""
    return samples.group_of([sample(index, length, version, ended) for length in lengths])


def random_group(index: int, draw: random.Random) -> Group:
    """A prompt, a partial or a finished group."""
    ended = draw.random() < 0.3
    lengths = tuple(draw.choice((0, 1, 3, 17, 40)) + int(ended) for _ in range(draw.randint(1, 3)))
    return group(index, lengths, draw.randint(1, 4), ended)


def contents(groups: list[Group]) -> list[Any]:
    """All that makes two lists of groups equal."""
    return [(one.index, [member.payload.to_dict() for member in one.members]) for one in groups]


class ModelBuffer:
    """Groups in memory, and copies of them at the end of each round."""

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        self.rounds: dict[int, bytes] = {}
        self.saved: dict[int, bytes] = {}
        self.committed = pickle.dumps(self.groups)
        self.committed_rounds: dict[int, bytes] = {}

    def put(self, groups: list[Group]) -> None:
        self.groups |= {one.index: one for one in copy.deepcopy(groups)}

    def take(self, count: int) -> list[Group]:
        taken = self.snapshot()[:count]
        for one in taken:
            del self.groups[one.index]
        return taken

    def snapshot(self) -> list[Group]:
        return sorted(self.groups.values(), key=lambda one: priority(one, MAX_LEN))

    def commit(self, rollout_id: int, state: dict[str, Any] | None = None) -> None:
        self.rounds = {number: kept for number, kept in self.rounds.items() if number < rollout_id}
        self.rounds[rollout_id] = self.committed = pickle.dumps(self.groups)
        self.committed_rounds = self.rounds

    def save(self, rollout_id: int, folder: Any) -> None:
        self.saved[rollout_id] = self.rounds[rollout_id]

    def load(self, groups: bytes) -> None:
        self.groups = pickle.loads(groups)

    def roll_back(self, rollout_id: int) -> None:
        self.load(self.rounds[rollout_id])
        self.rounds = {number: kept for number, kept in self.rounds.items() if number <= rollout_id}


def opened(folder: Path, **options: Any) -> DurableBuffer:
    return DurableBuffer(folder, SampleCodec(Sample), MAX_LEN, **options)


def filled(folder: Path, count: int = 4) -> DurableBuffer:
    """A buffer with partials 0, 1, ... at the end of round 0."""
    buffer = opened(folder)
    buffer.put([group(index, (20 + index,)) for index in range(count)])
    buffer.commit(0, {"round": 0})
    return buffer


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
