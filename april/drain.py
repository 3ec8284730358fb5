"""The end of a round, within one deadline: abort everything, wait for it, cancel what is late; or pause the engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from april.core import Group
from april.ports import Engine

CONFIRM_IDLE_S = 2.0
ABORT_AGAIN_S = 0.5

Task = asyncio.Future[Group]


@dataclass(frozen=True, slots=True)
class End:
    """How a submitted group ended: as its task returned it, or recovered with what it had and the reason for that."""

    before: Group
    group: Group
    error: str | None = None


async def drain(engine: Engine, running: dict[Task, Group], seconds: float) -> tuple[list[End], int | None]:
    """End every task in ``running`` within ``seconds``; dead engines and slow judges are tolerated.

    Returns how each ended, and the engines' load after it (None: not known).
    """
    deadline = time.monotonic() + seconds
    # Cancelled tasks need a moment to unwind, within the deadline.
    await _abort_until_ended(engine, running, deadline - min(1.0, seconds / 10))
    late = {task for task in running if not task.done()}
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=max(0.0, deadline - time.monotonic()))
    load = asyncio.ensure_future(engine.load())
    await asyncio.wait({load}, timeout=max(0.0, min(CONFIRM_IDLE_S, deadline - time.monotonic())))
    load.cancel()
    ends = [_end(engine, task, group, seconds) for task, group in running.items()]
    return ends, load.result() if load.done() and not load.cancelled() else None


async def suspend(
    engine: Engine, running: dict[Task, Group], seconds: float
) -> tuple[list[End], list[tuple[Group, Group]]]:
    """Pause the engines and keep every task that has not ended for a later round.

    Returns how the others ended, and of each group that is kept what it was when it was submitted, and what is known of
    it now.
    """
    pause = asyncio.ensure_future(engine.pause(time.monotonic() + seconds))
    try:
        await asyncio.wait({pause}, timeout=seconds)
        if pause.done():
            pause.result()
    finally:
        pause.cancel()
    ends = [_end(engine, task, group, seconds) for task, group in running.items() if task.done()]
    return ends, [(group, engine.carry(task, group)) for task, group in running.items() if not task.done()]


async def _abort_until_ended(engine: Engine, tasks: Iterable[Task], deadline: float) -> None:
    """Abort again and again, since requests arrive late, until our tasks have ended; then let the engines confirm."""
    abort = asyncio.ensure_future(engine.abort_all(deadline))
    try:
        running = {task for task in tasks if not task.done()}
        while running and (left := deadline - time.monotonic()) > 0:
            _, running = await asyncio.wait(running, timeout=min(left, ABORT_AGAIN_S))
            if running and abort.done():
                abort.result()
                abort = asyncio.ensure_future(engine.abort_all(deadline))
        await asyncio.wait({abort}, timeout=max(0.0, min(CONFIRM_IDLE_S, deadline - time.monotonic())))
        if abort.done():
            abort.result()
    finally:
        abort.cancel()


def _end(engine: Engine, task: Task, before: Group, seconds: float) -> End:
    if not task.done() or task.cancelled():
        error = f"group {before.index}: did not end within the drain deadline of {seconds:g} s"
    elif (failure := task.exception()) is not None:
        error = f"group {before.index}: {type(failure).__name__}: {failure}"
    else:
        return End(before, task.result())
    return End(before, engine.recover(before), error)
