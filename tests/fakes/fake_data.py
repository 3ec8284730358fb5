"""The fake host's samples and its data source."""

from __future__ import annotations

import copy
import enum
from dataclasses import dataclass, field
from typing import Any


class Status(enum.Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    group_index: int | None = None
    index: int | None = None
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    session_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "status": self.status.value}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Sample:
        return cls(**{**data, "status": Status(data["status"])})

    def get_reward_value(self, args: Any) -> float:
        return float(self.reward)


Sample.Status = Status  # type: ignore[attr-defined]


class Dataset:
    def __init__(self, size: int) -> None:
        self.samples = [Sample(prompt=str(number)) for number in range(size)]
        self.origin = list(self.samples)

    def __len__(self) -> int:
        return len(self.samples)

    def shuffle(self, epoch: int) -> None:
        shift = epoch % len(self.origin)
        self.samples = self.origin[shift:] + self.origin[:shift]


class DataSource:
    """Prompts in order, epoch after epoch; its state file is ``fake_<id>.txt``."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.epoch_id = self.sample_group_index = self.sample_index = self.sample_offset = 0
        self.dataset = Dataset(args.prompts)

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        groups = []
        for _ in range(num_samples if self.args.prompts else 0):
            if self.sample_offset == len(self.dataset):
                self.epoch_id, self.sample_offset = self.epoch_id + 1, 0
                self.dataset.shuffle(self.epoch_id)
            group = []
            for _ in range(self.args.n_samples_per_prompt):
                sample = copy.deepcopy(self.dataset.samples[self.sample_offset])
                sample.group_index, sample.index = self.sample_group_index, self.sample_index
                self.sample_index += 1
                group.append(sample)
            self.sample_offset += 1
            self.sample_group_index += 1
            groups.append(group)
        return groups

    def add_samples(self, groups: list[Any]) -> None:
        raise RuntimeError("read-only")

    def _path(self, folder: Any, rollout_id: Any) -> Any:
        return folder / "rollout" / f"fake_{rollout_id}.txt"

    def save(self, rollout_id: int) -> None:
        path = self._path(self.args.save, rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{self.epoch_id} {self.sample_group_index} {self.sample_index} {self.sample_offset}")

    def load(self, rollout_id: int | None = None) -> None:
        path = self._path(self.args.load, rollout_id)
        if path.exists():
            numbers = [int(word) for word in path.read_text().split()]
            self.epoch_id, self.sample_group_index, self.sample_index, self.sample_offset = numbers
            if self.args.rollout_shuffle:
                self.dataset.shuffle(self.epoch_id)
