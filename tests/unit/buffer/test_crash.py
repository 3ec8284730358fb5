"""A process that is killed at any instruction leaves the buffer, and its checkpoints, as the last round's end did.

A child (a fork) plays a script of puts, takes, round ends and checkpoints that its seed decides, and says on a pipe
which step it has done. It is killed from outside at a random time, or by itself at its k-th call of anything that
touches the disk, or in the middle of a SQL statement. The parent plays the same script on a model and compares.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_buffer import ModelBuffer, contents, opened, random_group

from april.buffer import reader

STEPS = 24
# A kill needs no real disk: what the process wrote is in the system's hands.
SHM = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHM if os.access(SHM, os.W_OK) else None) as made:
        yield Path(made)


class Script:
    """Step after step on a buffer; the same seed gives the same steps on the real one and on the model."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.folder = folder
        self.next, self.ended, self.first = 0, -1, 0

    def step(self, buffer: Any) -> str:
        """Returns what it did."""
        kind = self.draw.choice(("put", "put", "put", "take", "take", "commit", "commit", "save", "save", "back"))
        if kind == "put":
            groups = [random_group(self.next + number, self.draw) for number in range(self.draw.randint(1, 4))]
            self.next += len(groups)
            buffer.put(groups)
        elif kind == "take":
            groups = buffer.take(self.draw.randint(1, 5))
            buffer.put([group for group in groups if self.draw.random() < 0.3])
        elif kind == "commit":
            self.ended += 1
            buffer.commit(self.ended, {})
        elif self.ended >= 0:
            # The last round, or late: the one before it.
            number = max(self.first, self.ended - self.draw.randint(0, 1))
            if kind == "save":
                buffer.save(number, self.folder / f"saved_{number}")
            else:
                # As a run does that starts again from a round: those after it are done, and saved, anew.
                buffer.roll_back(number)
                self.ended = self.first = number
        return kind


def child(folder: Path, seed: int, pipe: int, prepare: Callable[[], None]) -> None:
    prepare()
    buffer = opened(folder / "live")
    script = Script(seed, folder)
    for number in range(STEPS):
        os.write(pipe, bytes([2 * number]))
        script.step(buffer)
        os.write(pipe, bytes([2 * number + 1]))


def killed(
    folder: Path, seed: int, prepare: Callable[[], None], at: tuple[int, float] | None = None
) -> tuple[int, int]:
    """Run a child to its end, or kill it in step ``at[0]``, ``at[1]`` seconds after that began.

    Returns the steps that it had done, and its wait status.
    """
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(receive)
            child(folder, seed, send, prepare)
        except BaseException:
            os._exit(3)
        os._exit(0)
    os.close(send)
    said = b""
    while at is not None and (not said or said[-1] < 2 * at[0]) and (more := os.read(receive, 1)):
        said += more
    if at is not None:
        time.sleep(at[1])
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    said += b"".join(iter(lambda: os.read(receive, 4096), b""))
    os.close(receive)
    return (max(said, default=0) + 1) // 2, status


def check(folder: Path, seed: int, done: int) -> None:
    """Compare with the model after ``done`` steps, where the step in flight may have happened or not."""
    model, script = ModelBuffer(), Script(seed, folder)
    for _ in range(done):
        script.step(model)
    before = copy.deepcopy(model)
    if done < STEPS:
        script.step(model)
    assert check_live(folder) in (held(before.committed), held(model.committed))
    for path in folder.glob("saved_*"):
        number = int(path.name[6:])
        allowed = [saves[number] for saves in (before.saved, model.saved) if number in saves]
        if (path / "index.sqlite").exists():
            assert check_checkpoint(path) in map(held, allowed)
        else:
            assert number not in before.saved, "a checkpoint that was whole is not"
    assert all((folder / f"saved_{number}").exists() for number in before.saved)


def held(groups: bytes) -> Any:
    model = ModelBuffer()
    model.load(groups)
    return contents(model.snapshot())


def check_live(folder: Path) -> Any:
    """What a process finds that opens the buffer anew. It goes on from there: all is taken once, nothing is damaged."""
    buffer = opened(folder / "live")
    found = contents(buffer.snapshot())
    buffer.commit(99, {})
    assert len(buffer.take(1000)) == len(found)
    buffer.close()
    with reader.opened(folder / "live") as live:
        assert live.faults() == []
    assert not list((folder / "live").glob("*.tmp"))
    return found


def check_checkpoint(path: Path) -> Any:
    with reader.opened(path) as found:
        assert found.faults() == []
    with tempfile.TemporaryDirectory(dir=path.parent) as elsewhere:
        buffer = opened(Path(elsewhere) / "live")
        buffer.load(path)
        groups = contents(buffer.snapshot())
        buffer.close()
    return groups


def quiet() -> None:
    """No crash of its own."""


def test_the_script_to_its_end(folder: Path) -> None:
    done, status = killed(folder, 0, quiet)
    assert (done, status) == (STEPS, 0)
    check(folder, 0, done)


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_killed_at_a_random_time(folder: Path, first: int) -> None:
    """300 seeds. Most steps take less than a millisecond, the end of a round about one."""
    cut = 0
    for seed in range(first, first + 50):
        place = folder / str(seed)
        place.mkdir()
        draw = random.Random(-seed)
        done, _ = killed(place, seed, quiet, (draw.randrange(2, STEPS), draw.uniform(0.0, 0.001)))
        cut += done < STEPS
        check(place, seed, done)
        shutil.rmtree(place)
    assert cut > 5, "the kills come too late to test anything"


CALLS = ("open", "write", "fsync", "replace", "link", "unlink", "mkdir", "close")


def dies_at(call: int) -> Callable[[], None]:
    """The process ends at its ``call``-th call of the system or SQL statement, before or after it."""

    def prepare() -> None:
        count = countdown(call)
        for name in CALLS:
            setattr(os, name, counted(getattr(os, name), count))
        on_connections(lambda db: db.set_trace_callback(lambda _: count()))

    return prepare


def dies_in_sql(instruction: int) -> Callable[[], None]:
    """The process ends at the ``instruction``-th instruction (of SQLite's virtual machine, in tens)."""

    def prepare() -> None:
        count = countdown(instruction)
        on_connections(lambda db: db.set_progress_handler(count, 10))

    return prepare


def countdown(number: int) -> Callable[[], None]:
    left = [number]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            os._exit(9)

    return count


def on_connections(change: Callable[[sqlite3.Connection], None]) -> None:
    real = sqlite3.connect

    def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        db = real(*args, **kwargs)
        change(db)
        return db

    sqlite3.connect = connect  # type: ignore[assignment]


def counted(function: Callable[..., Any], count: Callable[[], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        count()
        result = function(*args, **kwargs)
        count()
        return result

    return call


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("kind", "stride"), [(dies_at, 9), (dies_in_sql, 17)])
def test_killed_at_every_call(folder: Path, seed: int, kind: Callable[[int], Any], stride: int) -> None:
    """Call after call to the end of the script; the seeds share the calls between them."""
    for call in range(1 + seed, 10_000, stride):
        place = folder / str(call)
        place.mkdir()
        done, status = killed(place, seed, kind(call))
        assert os.waitstatus_to_exitcode(status) in (0, 9)
        check(place, seed, done)
        shutil.rmtree(place)
        if status == 0:
            return
    pytest.fail("the script has more calls than were tried")


def test_killed_while_a_checkpoint_is_replaced(folder: Path) -> None:
    """At every call: what is there is the old one or the new one."""
    for call in range(1, 1000):
        place = folder / str(call)
        place.mkdir()
        buffer = opened(place / "live")
        buffer.put([random_group(number, random.Random(number)) for number in range(9)])
        buffer.commit(0, {})
        buffer.save(0, place / "saved_0")
        old = contents(buffer.snapshot())
        buffer.take(3)
        buffer.commit(0, {})
        buffer.put(buffer.take(99))
        buffer.commit(0, {})
        new = contents(buffer.snapshot())
        pid = os.fork()
        if pid == 0:
            dies_at(call)()
            buffer.save(0, place / "saved_0")
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        assert check_checkpoint(place / "saved_0") in (old, new)
        buffer.close()
        shutil.rmtree(place)
        if status == 0:
            return
    pytest.fail("saving takes more calls than were tried")
