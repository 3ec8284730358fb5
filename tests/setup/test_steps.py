"""Steps run once, in order; a step that failed or was killed runs again, and one whose result is gone too."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from april.launch.environment.progress import Progress
from april.launch.environment.steps import Stamps, Step, carry_out, pending


class World:
    """Three steps that each make a file; ``fail`` names one that stops half-way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: list[str] = []
        self.fail = ""
        self.key = "1"

    def steps(self) -> list[Step]:
        return [self.step(name) for name in ("first", "second", "third")]

    def step(self, name: str) -> Step:
        target = self.folder / name

        def run() -> str:
            self.ran.append(name)
            target.write_text("half")
            if self.fail == name:
                raise KeyboardInterrupt
            target.write_text("whole")
            return "made"

        return Step(name, f"the {name} one", self.key, target.is_file, run)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def stamps(tmp_path: Path) -> Stamps:
    return Stamps(tmp_path / "stamps")


def test_all_run_once_in_order(world: World, stamps: Stamps, progress: Progress, out: io.StringIO) -> None:
    assert carry_out(world.steps(), stamps, progress) == 3
    assert carry_out(world.steps(), stamps, progress) == 0
    assert world.ran == ["first", "second", "third"]
    assert pending(world.steps(), stamps) == []
    assert "[2/3] the second one: made (" in out.getvalue()


def test_an_interrupted_step_is_taken_up_although_its_result_seems_to_be_there(
    world: World, stamps: Stamps, progress: Progress
) -> None:
    world.fail = "second"
    with pytest.raises(KeyboardInterrupt):
        carry_out(world.steps(), stamps, progress)
    assert (world.folder / "second").is_file()
    assert [step.name for step in pending(world.steps(), stamps)] == ["second", "third"]
    world.fail = ""
    assert carry_out(world.steps(), stamps, progress) == 2
    assert world.ran == ["first", "second", "second", "third"]
    assert (world.folder / "second").read_text() == "whole"


def test_a_result_that_is_gone_is_made_again(world: World, stamps: Stamps, progress: Progress) -> None:
    carry_out(world.steps(), stamps, progress)
    (world.folder / "third").unlink()
    assert carry_out(world.steps(), stamps, progress) == 1
    assert world.ran[-1] == "third"


def test_other_inputs_make_all_run_again(world: World, stamps: Stamps, progress: Progress) -> None:
    carry_out(world.steps(), stamps, progress)
    world.key = "2"
    assert carry_out(world.steps(), stamps, progress) == 3


def test_a_step_that_fails_when_run_again_is_not_done(world: World, stamps: Stamps, progress: Progress) -> None:
    carry_out(world.steps(), stamps, progress)
    (world.folder / "first").unlink()
    world.fail = "first"
    with pytest.raises(KeyboardInterrupt):
        carry_out(world.steps(), stamps, progress)
    assert [step.name for step in pending(world.steps(), stamps)] == ["first"]


def test_stamps_leave_no_scratch_files(world: World, stamps: Stamps, progress: Progress) -> None:
    carry_out(world.steps(), stamps, progress)
    assert sorted(path.name for path in stamps.folder.iterdir()) == ["first", "second", "third"]
