"""The plan for a machine without a GPU: `.venv` from the locks, torch, miles unpacked beside them, the overlay.

The miles download comes first of all downloads: it is small, so a network that is not there is noticed within seconds.
torch is installed by pip, which knows of a local CPU build through its configuration; the locked part by uv, which is
faster and checks the same hashes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from . import interpreter, inventory, miles_wheel, preflight
from .commands import Runner, explain
from .errors import SetupError
from .lockfiles import Locked, digest, normalize, read_lock
from .paths import SHARE
from .steps import Step

TORCH_BRINGS = frozenset({"triton"})
"""A CUDA build of torch, where no CPU build was found, moves these to its own versions."""

VENV_PARTS = frozenset({"bin", "include", "lib", "lib64"})
"""What venv makes before pyvenv.cfg."""


class CpuEnvironment:
    """The virtual environment ``venv`` of the checkout ``repository``; ``steps`` makes it."""

    def __init__(self, repository: Path, venv: Path, runner: Callable[[], Runner]) -> None:
        self.repository = repository
        self.venv = venv
        self.runner = runner
        self.locks = repository / "configs" / "locks"
        self.python = venv / "bin" / "python"
        (self.miles,) = read_lock(self.locks / "miles.txt").values()
        (self.torch,) = read_lock(self.locks / "torch.in").values()
        self.tools = read_lock(self.locks / "tools.txt")
        self.packages = {**read_lock(self.locks / "cpu.txt"), **read_lock(self.locks / "dev.txt")}
        self.miles_tree = venv / SHARE / f"miles-{self.miles.version}"

    @property
    def site(self) -> Path:
        """The folder of installed packages."""
        return inventory.site_packages(self.venv)

    def steps(self) -> list[Step]:
        """Everything, in order. The sizes are what a new environment takes."""
        locks = [self.locks / name for name in ("cpu.txt", "dev.txt")]
        python = interpreter.VERSION
        return [
            Step("venv", f".venv with Python {python}", python, self.has_venv, self.make_venv, 0.1),
            Step(
                "miles",
                f"miles {self.miles.version}, unpacked",
                digest([self.locks / "miles.txt"], python),
                self.has_miles,
                self.fetch_miles,
                0.2,
            ),
            Step(
                "tools",
                "installer",
                digest([self.locks / "tools.txt"], python),
                lambda: self.has(self.tools),
                self.install_tools,
                0.2,
            ),
            Step(
                "packages",
                f"{len(self.packages)} locked packages",
                digest(locks, python),
                lambda: self.has(self.packages),
                self.install_packages,
                5.4,
            ),
            Step(
                "torch",
                f"torch {self.torch.version}",
                digest([self.locks / "torch.in"], python),
                lambda: self.has({"torch": self.torch}),
                self.install_torch,
                1.4,
            ),
            Step(
                "bytecode",
                "byte-compiled packages",
                digest([*locks, self.locks / "torch.in"], python),
                lambda: True,
                self.compile_packages,
                0.6,
            ),
            Step(
                "overlay",
                "april, editable",
                digest([self.repository / "setup.py"], str(self.repository)),
                self.has_overlay,
                self.install_overlay,
                0.1,
            ),
        ]

    def check(self, needed: float) -> None:
        """Raise SetupError when this machine cannot carry out steps that write ``needed`` GiB."""
        preflight.check_platform()
        preflight.check_writable(self.repository)
        preflight.check_compiler()
        preflight.check_disk(self.repository, needed)

    def repair(self) -> list[str]:
        """Forget locked packages of which files are missing or changed, so that they are installed again; their
        names."""
        ours = {*self.packages, *self.tools, "torch", "pip"}
        broken = [package for package in inventory.damaged(self.site) if package.name in ours]
        inventory.forget(broken)
        inventory.sweep(self.site)
        return sorted(package.name for package in broken)

    def has(self, locked: dict[str, Locked]) -> bool:
        """Whether every one of ``locked`` is installed in its version (a local build of it counts)."""
        present = inventory.installed(self.site)
        return all(
            name in present and (present[name].version.split("+")[0] == entry.version or name in TORCH_BRINGS)
            for name, entry in locked.items()
        )

    def has_venv(self) -> bool:
        """Whether ``.venv`` is an environment of the right Python, with pip."""
        return (
            self.python.exists()
            and "pip" in inventory.installed(self.site)
            and self._venv_version() == interpreter.VERSION
        )

    def make_venv(self) -> str:
        """Create ``.venv``, or complete one that was left half-made."""
        version = self._venv_version()
        if not version and self.venv.exists() and not {path.name for path in self.venv.iterdir()} <= VENV_PARTS:
            raise SetupError(f"{self.venv} is there and is no Python environment: move it away, then run it again")
        if version not in ("", interpreter.VERSION):
            raise SetupError(
                f"{self.venv} is made with Python {version}, the locks are for {interpreter.VERSION}: remove it"
            )
        python = interpreter.find()
        self.runner().run([python.program, "-m", "venv", str(self.venv)], "creating the environment")
        return f"Python {python.version}"

    def _venv_version(self) -> str:
        """``3.11`` of pyvenv.cfg; empty when there is none."""
        try:
            text = (self.venv / "pyvenv.cfg").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        match = re.search(r"^version(?:_info)? *= *(\d+\.\d+)", text, re.MULTILINE)
        return match[1] if match else ""

    def has_miles(self) -> bool:
        """Whether the unpacked tree is whole."""
        return miles_wheel.is_whole(self.miles_tree, self.miles.hashes)

    def fetch_miles(self) -> str:
        """Download the wheel, check it, unpack it without its sglang."""
        downloads = self.venv / SHARE / "download"
        shutil.rmtree(downloads, ignore_errors=True)
        options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--retries", "1", "--timeout", "20"]
        lock = str(self.locks / "miles.txt")
        self._pip("downloading miles", "download", *options, "-d", str(downloads), "-r", lock)
        (wheel,) = downloads.glob("*.whl")
        count = miles_wheel.unpack(wheel, self.miles_tree, self.miles.hashes, self._compile)
        shutil.rmtree(downloads)
        return f"{count} files"

    def _compile(self, scratch: Path, target: Path) -> None:
        command = [str(self.python), "-m", "compileall", "-q", "-s", str(scratch), "-p", str(target), str(scratch)]
        self.runner().run(command, "byte-compiling miles")

    def install_tools(self) -> str:
        """Install uv, and setuptools for what is built from source."""
        self._pip("installing uv", "install", "--no-deps", "--require-hashes", "-r", str(self.locks / "tools.txt"))
        return f"uv {self.tools['uv'].version}"

    def install_packages(self) -> str:
        """Install the locks with uv: every file has the hash that the lock names, nothing else is added."""
        runner = self.runner()
        total = len(self.packages)

        def detail(line: str) -> str:
            return f"{len(self.packages.keys() & inventory.installed(self.site).keys())} of {total} installed; {line}"

        install = [str(self.python), "-m", "uv", "pip", "install", "--python", str(self.python), *self._index()]
        install += ["--no-deps", "--require-hashes", "--no-build-isolation"]
        install += ["-r", str(self.locks / "cpu.txt"), "-r", str(self.locks / "dev.txt")]
        runner.run(install, "installing the locked packages", detail)
        return "hashes checked"

    def _index(self) -> list[str]:
        """uv does not read pip's configuration: pass on the index that a user has set there."""
        settings = self._pip("reading pip's configuration", "config", "list")
        match = re.search(r"^(?::env:|global|install)\.index-url='(.+)'$", settings, re.MULTILINE)
        return ["--default-index", match[1]] if match else []

    def install_torch(self) -> str:
        """Install torch with pip: a CPU build where pip finds one."""
        options = ["--no-compile", "--progress-bar", "off"]
        self._pip("installing torch", "install", *options, f"torch=={self.torch.version}")
        version = inventory.installed(self.site)["torch"].version
        return version if "+cpu" in version else f"{version}, what the index serves: pip found no CPU build"

    def compile_packages(self) -> str:
        """Byte-compile what is installed, once, instead of in each of the processes that a first run starts at once."""
        command = [str(self.python), "-W", "ignore", "-m", "compileall", "-q", "-q", "-j", "0", str(self.site)]
        # Exit code 1: a file is no Python 3 (templates, tests of other versions); it would not be imported either.
        output = self.runner().run(command, "byte-compiling the packages", lambda line: "at work", accept=(0, 1))
        cause = explain(output, {})
        if cause:
            raise SetupError(cause)
        return "a first run starts faster"

    def has_overlay(self) -> bool:
        """Whether april is installed from this checkout."""
        package = inventory.installed(self.site).get(normalize("april-rollout"))
        url = package.metadata / "direct_url.json" if package else None
        return url is not None and url.is_file() and f'"{self.repository.as_uri()}"' in url.read_text(encoding="utf-8")

    def install_overlay(self) -> str:
        """Install this checkout, editable."""
        options = ["--no-deps", "--no-build-isolation", "--no-index"]
        self._pip("installing the overlay", "install", *options, "-e", str(self.repository))
        return "the command is .venv/bin/april"

    def _pip(self, what: str, *arguments: str) -> str:
        return self.runner().run([str(self.python), "-m", "pip", *arguments], what)
