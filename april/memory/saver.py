"""MemorySaver: regions by tag that are paused and resumed at unchanged addresses. Imports no PyTorch by itself.

Invariants: a resume brings back all of a tag or nothing of it; calling pause or resume again does nothing; a block can
be freed at any time; whatever fails, every other tag stays usable. docs/memory.md has the table of calls and states.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from april.errors import AprilError, UsageError
from april.memory import kinds, watchdog
from april.memory.block import Block
from april.memory.errors import Cause, MemoryFault
from april.memory.kinds import Keep
from april.memory.library import Core, Moved
from april.memory.regions import Region, Regions
from april.memory.stats import Stats, TagStats

DRIVERS = ("host", "hip", "cuda")
CHUNK = 2 << 20
FREED = 0.95
"""The part of a paused region that must be seen to come back (torch_memory_saver#83)."""
SETTLE_S = 2.0
"""How long a device's free memory may take to show it."""


class MemorySaver:
    """Regions of one device in one process.

    Args:
        compaction_interval: allocations, frees, pauses and resumes after which :meth:`between_rounds` compacts.
        max_fragmentation: the part of the reserved memory that may be unused before it compacts all the same.
        driver: ``host``, ``hip`` or ``cuda``.
        library: path of the runtime's library; empty for the one that PyTorch has loaded, or the installed one.
        limit: bytes that the host driver gives out at most; 0 for what the machine has.
        chunk: small blocks share segments of this size.
        extent_limit: largest piece of memory asked for at once, 0 for any (ROCm 6: 2 MiB).
        backup_folder: where files of ``Keep.FILE`` are made; default: the folder for temporary files.
        verify: whether a pause that frees less than 95% of the region on the device is an error.
        capture: a context that sends PyTorch's allocations to :attr:`current`; by default they are left alone.
    """

    def __init__(
        self,
        compaction_interval: int = 1000,
        max_fragmentation: float = 0.4,
        *,
        driver: str = "host",
        library: str = "",
        device: int = 0,
        limit: int = 0,
        chunk: int = CHUNK,
        extent_limit: int = 0,
        backup_folder: str | None = None,
        verify: bool = True,
        hang_s: float | None = None,
        capture: Callable[[MemorySaver], AbstractContextManager[Any]] | None = None,
    ) -> None:
        if driver not in DRIVERS:
            raise UsageError(f"unknown memory driver {driver!r}: use {', '.join(DRIVERS)}")
        if compaction_interval < 1 or not 0 < max_fragmentation <= 1:
            raise UsageError("compaction_interval is at least 1, and max_fragmentation in (0, 1]")
        folder = backup_folder or tempfile.gettempdir()
        self.driver, self.device = driver, device
        self.core = Core(driver, library, device, limit, chunk, extent_limit, folder)
        self._interval, self._most, self._verify = compaction_interval, max_fragmentation, verify
        self._hang_s = watchdog.seconds() if hang_s is None else hang_s
        self._capture = capture
        self.regions = Regions()
        self._process = os.getpid()
        self._compactions, self._compacted_at = 0, 0
        self._margin, self._retain = 0, False

    def close(self) -> None:
        """Releases everything, blocks in use too: nothing of it may be touched afterwards."""
        if self._ours():
            self.core.close()

    def _ours(self) -> bool:
        return os.getpid() == self._process

    def _check_process(self) -> None:
        if not self._ours():
            owner = f"process {self._process}, and a fork shares its memory"
            raise AprilError(f"memory: this saver belongs to {owner}: make one after the fork")
        self.core.handle()

    # Regions and blocks

    @contextlib.contextmanager
    def region(self, tag: str, keep: bool | Keep | None = None) -> Iterator[None]:
        """What this thread allocates in the body belongs to ``tag``; regions nest, the innermost counts.

        Args:
            tag: any text of up to 63 bytes without line breaks.
            keep: whether contents survive a pause, or where they wait; by default as ``kinds.KEPT`` says.
        """
        with self._entered((kinds.checked(tag), self.kept(tag, keep))):
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """What this thread allocates in the body belongs to no region."""
        with self._entered(None):
            yield

    @contextlib.contextmanager
    def _entered(self, region: Region | None) -> Iterator[None]:
        self.regions.stack.append(region)
        try:
            with self._capture(self) if self._capture else contextlib.nullcontext():
                yield
        finally:
            self.regions.stack.pop()

    @property
    def current(self) -> Region | None:
        """This thread's region, or None."""
        return self.regions.current

    def kept(self, tag: str, keep: bool | Keep | None) -> Keep:
        """Where contents of a region wait: ``True`` is a file on a CPU, and pinned memory on a GPU."""
        if isinstance(keep, Keep):
            if keep is Keep.PINNED and self.driver == "host":
                raise UsageError("keep=PINNED needs a GPU: use MMAP or FILE for host memory")
            return keep
        wanted = kinds.KEPT.get(tag, True) if keep is None else keep
        return (Keep.FILE if self.driver == "host" else Keep.PINNED) if wanted else Keep.NOTHING

    def allocate(self, size: int, tag: str | None = None, keep: bool | Keep | None = None) -> Block:
        """A block of the current region, or of ``tag``. It is freed with its last reference.

        Allocating under a paused tag gives memory that is active: it is paused with the rest, the next time.

        Raises:
            MemoryFault: when there is not enough memory; what the pool held unused was returned before.
        """
        self._check_process()
        here = (kinds.checked(tag), self.kept(tag, keep)) if tag is not None else self.current
        if here is None:
            raise UsageError("allocate() without a tag is for the inside of a region")
        if size < 0:
            raise UsageError(f"cannot allocate {size} bytes")
        return Block(self.core, self.core.allocate(*here, size), size, here[0])

    # Moves

    def pause(self, tag: str | None = None) -> int:
        """Gives the memory of a tag (of all tags) back; returns the bytes. Again: does nothing, or what is left.

        Raises:
            MemoryFault: when contents could not be kept (then nothing of the tag changed), or when the runtime did not
                take or return all memory (then the tag is paused, and pausing again tries the rest).
        """
        self._check_process()
        return sum(self._pause(each) for each in self._named(tag))

    def _pause(self, tag: str) -> int:
        with self._watched(f"pause({tag})"):
            moved = self.core.pause(tag)
            if self._verify and self.driver != "host":
                self._check_freed(tag, moved)
        return moved.bytes

    def _check_freed(self, tag: str, moved: Moved) -> None:
        deadline = time.monotonic() + SETTLE_S
        free = moved.free_after
        while free - moved.free_before < FREED * moved.bytes:
            if time.monotonic() > deadline:
                freed = max(0, free - moved.free_before)
                told = f"{moved.bytes:,} bytes were released, and {freed:,} came back"
                cause = Cause("pause", tag, "free memory", told, 0, 0, free, False)
                raise MemoryFault(cause, ": the runtime keeps them (april doctor knows such releases)")
            time.sleep(SETTLE_S / 20)
            free = self.core.info()[0]

    def resume(self, tag: str | None = None) -> int:
        """Brings a tag back (all tags, see ``kinds.in_order``) at the same addresses; returns the bytes.

        Raises:
            MemoryFault: says the tag, and the bytes wanted and free; that tag stays paused, earlier ones are resumed.
        """
        self._check_process()
        total = 0
        for each in self._named(tag):
            with self._watched(f"resume({each})"):
                total += self.core.resume(each).bytes
        return total

    def _named(self, tag: str | None) -> list[str]:
        return kinds.in_order(self.core.tags()) if tag is None else [kinds.checked(tag)]

    def _watched(self, what: str) -> AbstractContextManager[None]:
        return watchdog.watched(what, self._hang_s, self.core)

    def compact(self) -> int:
        """Returns the unused pool, and makes paused regions whole and free of gaps; returns the bytes saved.

        For the time between rounds, when nothing is being allocated. Active regions keep their gaps until they are
        paused: what is mapped cannot be moved under captured graphs.
        """
        self._check_process()
        with self._watched("compact()"):
            moved = self.core.compact()
        self._compactions += 1
        self._compacted_at = self.core.counters(None)["operations"]
        return moved.bytes

    def between_rounds(self) -> int | None:
        """Tells that no round runs: compacts where it is due, and returns what that saved; None where it was not."""
        total = self.stats().total
        due = self.core.counters(None)["operations"] - self._compacted_at >= self._interval
        return self.compact() if due or total.fragmentation > self._most else None

    # Looking

    def stats(self) -> Stats:
        """What is held, by tag and in all."""
        self._check_process()
        free, total = self.core.info()
        rows = {tag: self.core.counters(tag) for tag in self.core.tags()}
        all_tags = self.core.counters(None)
        return Stats(
            total=_tag_stats(all_tags),
            tags={tag: _tag_stats(row) for tag, row in rows.items()},
            device_free=free,
            device_total=total,
            operations=all_tags["operations"],
            compactions=self._compactions,
            faults=all_tags["faults"],
            last_fault=self.core.last_fault(),
        )

    def state(self, address: int) -> str | None:
        """``active`` or ``paused``; None for an address that is not of this saver."""
        return self.core.state(address)

    def dirty(self, tag: str) -> bool:
        """Whether a tag was resumed without its contents and has not been called clean since."""
        return bool(self.core.counters(tag)["dirty"])

    def mark_clean(self, tag: str) -> None:
        """The contents of a tag have been written anew."""
        self.core.clean(tag)

    @property
    def margin(self) -> int:
        """Bytes of the device that stay free when something is allocated."""
        return self._margin

    @margin.setter
    def margin(self, value: int) -> None:
        self._margin = value
        self.core.set(self._margin, self._retain)

    @property
    def retain(self) -> bool:
        """Whether backups stay on the host after a resume."""
        return self._retain

    @retain.setter
    def retain(self, value: bool) -> None:
        self._retain = value
        self.core.set(self._margin, self._retain)


def _tag_stats(row: dict[str, int]) -> TagStats:
    names = {name: row[name] for name in TagStats.__slots__ if name != "dirty"}
    return TagStats(**names, dirty=bool(row["dirty"]))
