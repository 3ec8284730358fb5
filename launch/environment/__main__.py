"""``make setup``: brings this machine to where the other commands run, and returns at once when it is there."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from . import detect, guard, paths, preflight
from .commands import Runner
from .cpu import CpuEnvironment
from .errors import SetupError
from .overlay import Overlay, probe
from .progress import Progress
from .steps import Stamps, carry_out, pending


def runner_factory(progress: Progress) -> Callable[[], Runner]:
    """Makes the runner when it is first needed, so that a set-up with nothing to do keeps the last log."""
    made: list[Runner] = []

    def runner() -> Runner:
        if not made:
            made.append(Runner(paths.LOG, progress, {**os.environ, guard.MARK: str(paths.REPOSITORY)}))
        return made[0]

    return runner


def set_up_cpu(progress: Progress) -> str:
    """Make or complete ``.venv``; returns what to say at the end."""
    environment = CpuEnvironment(paths.REPOSITORY, paths.VENV, runner_factory(progress))
    stamps = Stamps(paths.VENV / paths.SHARE / "setup")
    steps = environment.steps()
    broken = environment.repair()
    if broken:
        progress.say(f"setup: installed again, since files are missing or changed: {', '.join(broken)}")
    todo = pending(steps, stamps)
    if not todo:
        return f"nothing to do: .venv holds {len(environment.packages)} locked packages, torch, miles and april"
    environment.check(sum(step.disk for step in todo))
    progress.total = len(steps)
    ran = carry_out(steps, stamps, progress)
    return f"{ran} of {len(steps)} steps done in {progress.elapsed:.0f} s; next: make quickstart, make test"


def set_up_overlay(device: str, python: str, progress: Progress) -> str:
    """Add the overlay to the user's environment; returns what to say at the end."""
    overlay = Overlay(paths.REPOSITORY, python, device, runner_factory(progress))
    overlay.check()
    if overlay.present:
        return f"nothing to do: the overlay is installed in {overlay.before['prefix']}"
    progress.total = 1
    progress.begin(1, f"the overlay beside torch {overlay.before['versions']['torch']} in {overlay.before['prefix']}")
    progress.end(overlay.install())
    lacking = [name for name in ("sglang", "slime") if name not in overlay.before["versions"]]
    note = f"; not installed there: {', '.join(lacking)} (slime can also be named with SLIME_DIR)" if lacking else ""
    return f"done in {progress.elapsed:.0f} s{note}"


def set_up(arguments: argparse.Namespace, progress: Progress) -> str:
    """Find the device and carry out its plan, alone in this checkout."""
    python = os.environ.get("PYTHON") or sys.executable
    device = detect.detect(arguments.device, torch_build=lambda: str(probe(python)["torch_build"]))
    preflight.check_writable(paths.REPOSITORY)
    with guard.only_one(paths.BUILD / "setup.lock"):
        guard.end_leftovers(paths.REPOSITORY)
        try:
            if device.name == "cpu":
                return set_up_cpu(progress)
            progress.say(f"setup: device {device.name} ({device.why}); no environment is made")
            return set_up_overlay(device.name, python, progress)
        finally:
            guard.end_leftovers(paths.REPOSITORY)


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 done, 1 something is missing, 2 wrong usage, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="make setup", description=__doc__)
    parser.add_argument(
        "--device", default=os.environ.get("SETUP_DEVICE") or "auto", help="auto, cpu, cuda or rocm (SETUP_DEVICE)"
    )
    progress = Progress(0, sys.stdout)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        progress.say(f"setup: {set_up(parser.parse_args(argv), progress)}")
    except SetupError as error:
        return _fail(progress, str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail(progress, "interrupted; what is done is kept, run it again to go on", 130)
    except PermissionError as error:
        return _fail(progress, f"no permission to write {error.filename}: run it as the owner of {Path.cwd()}", 1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return _fail(
            progress, f"the disk is full ({error.filename}): free some space and run it again; what is done is kept", 1
        )
    return 0


def _fail(progress: Progress, message: str, code: int) -> int:
    progress.interrupt()
    print(f"setup: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
