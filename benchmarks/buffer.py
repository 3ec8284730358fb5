"""What the durable buffer costs: medians of adding and taking one group, the end of a round, a checkpoint, memory.

    python benchmarks/buffer.py [--groups 100000] [--tokens 8192] [--dir DIR]

Each group is one partial response of so many tokens, with a log probability (of 32 bits) and a loss mask each, and
random text of the length of an average token. Needs about 10 bytes of disk a token, and as much memory as one group.
"""

from __future__ import annotations

import argparse
import enum
import json
import random
import resource
import shutil
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from april import samples
from april.buffer import reader
from april.buffer.codec import SampleCodec
from april.buffer.durable import DurableBuffer
from april.core import Group

ROUND = 1000


class Status(enum.Enum):
    """As the hosts'."""

    ABORTED = "aborted"


@dataclass
class Sample:
    """The fields of the hosts' samples that matter for size."""

    group_index: int
    tokens: list[int]
    response: str
    response_length: int
    rollout_log_probs: list[float]
    loss_mask: list[int]
    metadata: dict[str, Any]
    reward: float | None = None
    status: Status = Status.ABORTED
    weight_versions: list[str] = field(default_factory=lambda: ["1"])

    def to_dict(self) -> dict[str, Any]:
        """As the hosts'."""
        return {**self.__dict__, "status": self.status.value}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Sample:
        """As the hosts'."""
        return cls(**{**data, "status": Status(data["status"])})


class Maker:
    """Makes partials quickly: slices of one long random response."""

    def __init__(self, length: int) -> None:
        draw = random.Random(0)
        self.length = length
        self.ids = [draw.randrange(150_000) for _ in range(2 * length)]
        # Numbers of 32 bits, as an engine reports them.
        self.log_probs = array("f", [-draw.expovariate(1.0) for _ in range(2 * length)]).tolist()
        self.text = "".join(draw.choices("abcdefghij klmnop", k=8 * length))

    def __call__(self, index: int) -> Group:
        at = index % self.length
        leg = {"policy_version": index // ROUND, "start": 0, "length": self.length, "rollout_id": index // ROUND}
        sample = Sample(
            group_index=index,
            tokens=self.ids[at : at + self.length],
            response=self.text[at : at + 4 * self.length],
            response_length=self.length,
            rollout_log_probs=self.log_probs[at : at + self.length],
            loss_mask=[1] * self.length,
            metadata={"april": {"legs": [leg]}},
        )
        return samples.group_of([sample])


def rss_mb() -> float:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def run(groups: int, tokens: int, folder: Path) -> dict[str, float]:
    """Add all groups, in rounds of 1000; save; reopen from the checkpoint; take all. Times in ms, sizes in MB."""
    buffer = DurableBuffer(folder / "live", SampleCodec(Sample), 2 * tokens)
    make = Maker(tokens)
    before = rss_mb()
    adds, takes, ends = [], [], []
    memory = before
    for index in range(groups):
        group = make(index)
        adds.append(timed(lambda: buffer.put([group])))  # noqa: B023
        if (index + 1) % ROUND == 0 or index + 1 == groups:
            ends.append(timed(lambda: buffer.commit(index // ROUND, {})))  # noqa: B023
            memory = max(memory, rss_mb())
    size = buffer.bytes
    save = timed(lambda: buffer.save((groups - 1) // ROUND, folder / "saved"))
    buffer.close()
    buffer = DurableBuffer(folder / "other", SampleCodec(Sample), 2 * tokens)
    load = timed(lambda: buffer.load(folder / "saved"))
    for number in range(groups):
        takes.append(timed(lambda: buffer.take(1)))
        if (number + 1) % ROUND == 0:
            ends.append(timed(lambda: buffer.commit(number // ROUND, {})))  # noqa: B023
            memory = max(memory, rss_mb())
    assert len(buffer) == 0
    buffer.close()
    verify = timed(lambda: check(folder / "saved"))
    return {
        "groups": groups,
        "tokens": tokens,
        "payload_mb": size / 1e6,
        "add_ms": 1e3 * statistics.median(adds),
        "add_p99_ms": 1e3 * statistics.quantiles(adds, n=100)[-1],
        "take_ms": 1e3 * statistics.median(takes),
        "take_p99_ms": 1e3 * statistics.quantiles(takes, n=100)[-1],
        "round_end_ms": 1e3 * statistics.median(ends),
        "round_end_max_ms": 1e3 * max(ends),
        "save_ms": 1e3 * save,
        "load_ms": 1e3 * load,
        "verify_ms": 1e3 * verify,
        "memory_before_mb": before,
        "memory_growth_mb": memory - before,
    }


def check(folder: Path) -> None:
    """The checkpoint is sound."""
    with reader.opened(folder) as found:
        assert found.faults() == []


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--dir", help="where to write (default: the system's temporary folder)")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="april-benchmark-", dir=given.dir))
    try:
        figures = run(given.groups, given.tokens, folder)
    finally:
        shutil.rmtree(folder)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=1))


if __name__ == "__main__":
    main()
