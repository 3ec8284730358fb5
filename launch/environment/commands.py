"""Running an installer: its output goes to the log, its state to the progress line, its failure into one sentence."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from .errors import SetupError
from .progress import Progress

POLL = 0.3
PR_SET_PDEATHSIG = 1
NOISE = ("WARNING: Location", "Looking in ", "WARNING: Skipping")
"""pip says these of every index that is no folder, for every package."""

NETWORK = re.compile(
    r"Retrying \(Retry|ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|Cannot connect to proxy|tunnel error"
    r"|error sending request|Failed to fetch|client error \(Connect\)|dns error|Name or service not known"
    r"|Temporary failure in name resolution|Network is unreachable|Connection refused|Could not connect"
    r"|No route to host|timed out"
)

CAUSES = (
    (
        re.compile(r"DO NOT MATCH THE HASHES|[Hh]ash mismatch"),
        "a download does not have the hash that the lock file names (a mirror that repacks, or a damaged cache): "
        "nothing of it was installed; clear the installers' caches or use another index, then run it again",
    ),
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        "the disk is full: free some space and run it again; what is done is kept",
    ),
    (
        re.compile(r"externally-managed-environment"),
        "this Python is managed by the system and refuses packages: name the one that holds your stack with PYTHON=...",
    ),
    (
        re.compile(r"Permission denied|EACCES|Read-only file system"),
        "a file or folder may not be written: run it as the owner of this folder, or check out into one of yours",
    ),
    (
        NETWORK,
        "the package index cannot be reached: check the network and {settings}, then run it again; "
        "what is done is kept",
    ),
    (
        re.compile(
            r"(gcc|cc|clang).*not found|No such file.*'[^']*(gcc|cc|clang)'|Python\.h: No such|'[^']*(gcc|cc)' failed"
        ),
        "a package could not be compiled: install a C compiler and Python's headers (gcc, python3.11-dev)",
    ),
)
SETTINGS = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "PIP_INDEX_URL", "PIP_PROXY", "UV_INDEX_URL", "UV_DEFAULT_INDEX")


def explain(output: str, environment: Mapping[str, str]) -> str | None:
    """The cause of a failed installer in one sentence; None where its output has no known one."""
    for pattern, cause in CAUSES:
        if pattern.search(output):
            named = [f"{name}={_masked(environment[name])}" for name in SETTINGS if environment.get(name)]
            return cause.format(settings=", ".join(named) or "the proxy settings")
    return None


def _masked(url: str) -> str:
    """``url`` without the user and password in it."""
    return re.sub(r"//[^/@]*@", "//***@", url)


def last_words(output: str) -> str:
    """The line of ``output`` that most likely says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith(NOISE)]
    errors = [line for line in lines if re.match(r"(?i)(error|fatal|.*Error:)", line)]
    return (errors or lines or ["it said nothing"])[-1][:300]


class Runner:
    """Runs programs for the set-up: all output is kept in ``log``, children die with this process."""

    def __init__(self, log: Path, progress: Progress, environment: Mapping[str, str]) -> None:
        self.log = log
        self.progress = progress
        self.environment = dict(environment)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("", encoding="utf-8")

    def run(
        self,
        command: list[str],
        what: str,
        detail: Callable[[str], str] = lambda line: line,
        accept: tuple[int, ...] = (0,),
    ) -> str:
        """Run ``command``; return its output. ``detail`` turns its latest line into what the progress shows.

        Raises SetupError with the cause when its exit code is not one of ``accept``.
        """
        with self.log.open("ab") as sink:
            start = sink.tell()
            sink.write(("$ " + " ".join(command) + "\n").encode())
            sink.flush()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=self.environment,
                preexec_fn=_die_with_parent,
            )
            while True:
                try:
                    code = process.wait(POLL)
                    break
                except subprocess.TimeoutExpired:
                    self.progress.update(detail(self._latest(start)))
        output = self._since(start)
        if code not in accept:
            cause = explain(output, self.environment) or f"{what} failed: {last_words(output)}"
            raise SetupError(f"{cause} (full log: {os.path.relpath(self.log)})")
        return output

    def _since(self, start: int) -> str:
        with self.log.open("rb") as text:
            text.seek(start)
            return text.read().decode(errors="replace")

    def _latest(self, start: int) -> str:
        lines = [line for line in self._since(start).splitlines()[1:] if line.strip() and not line.startswith(NOISE)]
        return lines[-1].strip()[:100] if lines else "started"


def _die_with_parent() -> None:
    """In the child: ask Linux for a SIGKILL when the set-up is killed, so that no installer goes on behind the next
    one."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
