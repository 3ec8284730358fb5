"""The durable buffer does what a model in memory does, over any order of use, rounds, checkpoints and crashes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from fake_buffer import MAX_LEN, ModelBuffer, contents, group
from fake_data import Sample
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from april.buffer import reader
from april.buffer.codec import SampleCodec
from april.buffer.durable import KEPT_ROUNDS, DurableBuffer

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple)


class Machine(RuleBasedStateMachine):
    """Both side by side; ``saved`` holds the model's contents of each checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.model = ModelBuffer()
        self.index, self.round = 0, -1
        self.open()

    def open(self) -> None:
        self.buffer = DurableBuffer(self.folder / "live", SampleCodec(Sample), MAX_LEN)

    def teardown(self) -> None:
        self.buffer.close()
        with reader.opened(self.folder / "live") as found:
            assert found.faults() == []
        shutil.rmtree(self.folder)

    @invariant()
    def same(self) -> None:
        assert len(self.buffer) == len(self.model.groups)
        assert contents(self.buffer.snapshot()) == contents(self.model.snapshot())

    @rule(members=LENGTHS, version=st.integers(0, 3), ended=st.booleans())
    def put(self, members: Any, version: int, ended: bool) -> None:
        for buffer in (self.buffer, self.model):
            buffer.put([group(self.index, members, version, ended)])
        self.index += 1

    @rule(count=st.integers(0, 6), again=st.booleans())
    def take(self, count: int, again: bool) -> None:
        taken = self.buffer.take(count)
        assert contents(taken) == contents(self.model.take(count))
        if again:
            self.buffer.put(taken)
            self.model.put(taken)

    @rule()
    def restore(self) -> None:
        groups = self.model.snapshot()[::2]
        self.buffer.restore(groups)
        self.model.groups = {one.index: one for one in groups}

    @rule()
    def commit(self) -> None:
        self.round += 1
        for buffer in (self.buffer, self.model):
            buffer.commit(self.round, {"round": self.round})
        for number in sorted(self.model.rounds)[:-KEPT_ROUNDS]:
            del self.model.rounds[number]

    @precondition(lambda self: self.model.rounds)
    @rule(data=st.data())
    def save(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.rounds)))
        assert self.buffer.save(number, self.folder / str(number)) == {"round": number}
        self.model.save(number, None)

    @precondition(lambda self: self.model.saved)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.saved)))
        assert reader.state(self.folder / str(number)) == {"round": number}
        self.buffer.load(self.folder / str(number))
        self.model.load(self.model.saved[number])
        self.model.rounds, self.round = {}, number

    @precondition(lambda self: self.model.rounds)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        self.round = data.draw(st.sampled_from(sorted(self.model.rounds)))
        self.buffer.roll_back(self.round)
        self.model.roll_back(self.round)

    @rule()
    def crash(self) -> None:
        self.buffer.close()
        self.open()
        self.model.load(self.model.committed)
        self.model.rounds = dict(self.model.committed_rounds)
        self.round = max(self.model.rounds, default=-1)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
