"""The plan for a machine with a GPU: only the overlay goes into the Python that holds slime, SGLang and torch.

Nothing of theirs is installed, moved or removed: our few small requirements are added where they are absent,
everything with ``--no-deps``, and the list of installed versions is compared before and after.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .commands import Runner
from .errors import SetupError
from .lockfiles import read_lock

OURS = "april-rollout"
NEEDS = ("packaging", "psutil", "pyyaml", "wrapt")
"""What setup.py requires, without Jinja2, which torch brings."""

SUPPORTED = ((3, 10), (3, 11), (3, 12))
BUILDER = 77
"""The first setuptools that pyproject.toml accepts; where there is an older one, pip builds with a copy of its own."""

PROBE = Path(__file__).with_name("probe.py")


def probe(python: str) -> dict[str, Any]:
    """What the environment of the program ``python`` holds, as ``probe.py`` reports it.

    Raises SetupError when it does not run.
    """
    program = shutil.which(python)
    if program is None:
        raise SetupError(f"PYTHON={python} is no program: name the Python that holds your slime, SGLang and torch")
    done = subprocess.run([program, str(PROBE)], capture_output=True, cwd="/", check=False)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise SetupError(f"PYTHON={python} does not run: {words[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Overlay:
    """The overlay of the checkout ``repository`` in the environment of ``python``, for ``device`` (cuda or rocm)."""

    def __init__(self, repository: Path, python: str, device: str, runner: Callable[[], Runner]) -> None:
        self.repository = repository
        self.python = python
        self.device = device
        self.runner = runner
        self.before = probe(python)

    def check(self) -> None:
        """Raise SetupError unless the user's stack is one that the overlay can go beside."""
        version = tuple(self.before["python"][:2])
        where = f"the Python {self.python} ({self.before['prefix']})"
        if version not in SUPPORTED:
            raise SetupError(
                f"Python 3.10 to 3.12 is needed, {where} is {version[0]}.{version[1]}: name another with PYTHON=..."
            )
        build = self.before["torch_build"]
        if not build:
            raise SetupError(
                f"no torch in {where}: on a GPU machine set-up adds the overlay to the environment that holds your "
                "slime, SGLang and torch; name it with PYTHON=..., or use DEVICE=cpu for an environment of its own"
            )
        if build not in (self.device, "unknown"):
            raise SetupError(
                f"this machine's device is {self.device}, but torch in {where} is a build for {build}: name the right "
                "Python with PYTHON=..., or use DEVICE=cpu"
            )

    @property
    def absent(self) -> list[str]:
        """Which of our requirements are not installed."""
        return [name for name in NEEDS if name not in self.before["versions"]]

    @property
    def present(self) -> bool:
        """Whether there is nothing to do."""
        return not self.absent and self.before["april"] == self.repository.as_uri()

    def install(self) -> str:
        """Install the overlay, and the requirements that are absent; returns a summary.

        Raises SetupError when another package has changed (pip was told not to touch any).
        """
        if self.absent:
            self._add_absent()
        versions = self.before["versions"]
        recent = int(versions.get("setuptools", "0").partition(".")[0]) >= BUILDER
        isolation = ["--no-build-isolation"] if recent else []
        self._pip("installing the overlay", "--no-deps", *isolation, "-e", str(self.repository))
        after = probe(self.python)["versions"]
        ours = {OURS, *self.absent}
        moved = sorted(name for name in {*versions, *after} - ours if versions.get(name) != after.get(name))
        if moved:
            raise SetupError(
                f"installing the overlay changed {', '.join(moved)} in {self.before['prefix']}: report this"
            )
        return f"added {', '.join(sorted(ours))}; the other {len(after) - len(ours)} packages are as they were"

    def _add_absent(self) -> None:
        lock = read_lock(self.repository / "configs" / "locks" / "cpu.txt")
        with tempfile.TemporaryDirectory() as folder:
            wanted = Path(folder) / "requirements.txt"
            wanted.write_text("\n".join(lock[name].requirement for name in self.absent), encoding="utf-8")
            self._pip("installing " + " and ".join(self.absent), "--no-deps", "--require-hashes", "-r", str(wanted))

    def _pip(self, what: str, *arguments: str) -> None:
        self.runner().run([self.python, "-m", "pip", "install", *arguments], what)
