"""The SLURM script as it runs: SLURM, Ray and the run are small programs, bash and the script are real."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from april.launch.jobs.render import render

from .jobs import job

PROGRAMS = {
    "srun": """
echo "srun $*" >>"$LOG"
while [[ $1 == --* ]]; do shift; done
exec "$@"
""",
    "scontrol": """
if [ "$1" = show ]; then printf 'node-a\\nnode-b\\n'; else echo "scontrol $*" >>"$LOG"; fi
""",
    "getent": "echo '127.0.1.1 STREAM node-a'",
    "hostname": 'if [ "${1:-}" = -I ]; then echo 127.0.0.1 10.0.0.7; else echo node-a; fi',
    "ray": """
echo "ray $*" >>"$LOG"
for word in "$@"; do
  case $word in --temp-dir=*) folder=${word#*=} ;; esac
done
if [ -n "${folder:-}" ] && [ -z "${RAY_FAILS:-}" ]; then
  mkdir -p "$folder/session_1/logs" && ln -s session_1 "$folder/session_latest"
  echo hello >"$folder/session_1/logs/gcs_server.out"
  echo 10.0.0.7:41234 >"$folder/ray_current_cluster"
fi
[ -z "${RAY_FAILS:-}" ] || exit 1
trap 'echo "ray ends" >>"$LOG"; exit 0' TERM
while :; do sleep 0.05; done
""",
    "python3": 'echo "join ${*: -2}" >>"$LOG"',
    "april": """
echo "april $* at $RAY_ADDRESS" >>"$LOG"
trap 'echo "april ends" >>"$LOG"; exit 143' TERM
mkdir -p "${*: -1}"
[ -z "${CODE:-}" ] || exit "$CODE"
while :; do sleep 0.05; done
""",
}


class Slurm:
    """One job's world below ``folder``: its programs, what they wrote, and the script."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number
        self.log = folder / "log"
        self.runs = folder / "runs of it"
        self.job: subprocess.Popen[str] | None = None
        (folder / "bin").mkdir()
        for name, body in PROGRAMS.items():
            (folder / "bin" / name).write_text("#!/bin/bash\n" + body)
            (folder / "bin" / name).chmod(0o755)
        made = job(vendor="nvidia", container="none", run_dir=str(self.runs))
        (folder / "job.sh").write_text(render(made, "slurm").replace("sleep 0.5", "sleep 0.02"))

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Start the script as SLURM would."""
        given = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "LOG": str(self.log),
            "SLURM_JOB_ID": str(self.number),
            "SLURM_JOB_NODELIST": "node-[a-b]",
            **environment,
        }
        script = ["bash", str(self.folder / "job.sh")]
        self.job = subprocess.Popen(script, env=given, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return self.job

    def lines(self, first: str) -> list[str]:
        """What the programs wrote that begins with ``first``."""
        return (
            [line for line in self.log.read_text().splitlines() if line.startswith(first)] if self.log.exists() else []
        )

    def until(self, first: str) -> None:
        """Wait for such a line."""
        deadline = time.monotonic() + 20
        while not self.lines(first):
            assert time.monotonic() < deadline, first
            time.sleep(0.02)

    @property
    def left(self) -> list[Path]:
        """What the job left on its nodes."""
        return list(Path("/tmp").glob(f"april-{self.number}-*"))


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    made = Slurm(tmp_path, 10**9 + os.getpid())
    yield made
    if made.job is not None and made.job.poll() is None:
        made.job.terminate()
        made.job.communicate(timeout=30)
    assert made.left == []


def test_a_run_that_ends_well(slurm: Slurm) -> None:
    started = slurm.start(CODE="0")
    output, _ = started.communicate(timeout=30)
    assert started.returncode == 0, output
    head, worker = sorted(slurm.lines("ray start"), key=lambda line: "--head" not in line)
    assert "--port=0 " in head
    assert worker.endswith("--address=10.0.0.7:41234")
    assert any("--exclude=node-a ray start" in line for line in slurm.lines("srun"))
    assert slurm.lines("join") == ["join 10.0.0.7:41234 2"]
    (run,) = slurm.lines("april train")
    assert run.endswith(f"--run-dir {slurm.runs}/attempt-0 at 10.0.0.7:41234")
    assert len(slurm.lines("ray ends")) == 2
    assert slurm.lines("scontrol") == []
    assert [path.read_text() for path in slurm.runs.glob("attempt-0/logs/ray-*/gcs_server.out")] == ["hello\n"]


def test_the_end_of_the_time_ends_the_run_and_queues_the_job_again(slurm: Slurm) -> None:
    for attempt in range(2):
        started = slurm.start(SLURM_RESTART_COUNT=str(attempt))
        slurm.until(
            f"april train --hf-checkpoint /models/qwen3-4b --load /runs/demo/save --save /runs/demo/save "
            f"--run-dir {slurm.runs}/attempt-{attempt}"
        )
        started.send_signal(signal.SIGUSR1)
        output, _ = started.communicate(timeout=30)
        assert started.returncode == 143, output
        assert slurm.lines("scontrol") == [f"scontrol requeue {slurm.number}"] * (attempt + 1)
        assert len(slurm.lines("april ends")) == attempt + 1
    assert (slurm.log.read_text().index("april ends")) < slurm.log.read_text().index("scontrol requeue")


@pytest.mark.parametrize("code", ["1", "2"])
def test_a_failure_is_told_and_not_repeated(slurm: Slurm, code: str) -> None:
    started = slurm.start(CODE=code)
    output, _ = started.communicate(timeout=30)
    assert started.returncode == int(code), output
    assert slurm.lines("scontrol") == []
    assert len(slurm.lines("ray ends")) == 2


def test_a_cancelled_job_ends_what_it_started(slurm: Slurm) -> None:
    started = slurm.start()
    slurm.until("april train")
    started.terminate()
    output, _ = started.communicate(timeout=30)
    assert started.returncode == 143, output
    assert slurm.lines("april ends") == ["april ends"]
    assert len(slurm.lines("ray ends")) == 2
    assert slurm.lines("scontrol") == []  # after a preemption SLURM does that itself


def test_a_ray_that_does_not_start_is_named(slurm: Slurm) -> None:
    started = slurm.start(RAY_FAILS="1")
    output, _ = started.communicate(timeout=30)
    assert started.returncode == 1
    assert "april: error: Ray did not start on node-a" in output
    assert slurm.lines("april train") == []


def test_a_port_in_use_is_passed_by(slurm: Slurm) -> None:
    import socket

    first = 20000 + slurm.number % 12000
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        started = slurm.start(CODE="0")
        started.communicate(timeout=30)
    (head,) = [line for line in slurm.lines("ray start") if "--head" in line]
    assert f"--ray-client-server-port={first} " not in head
    assert "--ray-client-server-port=2" in head or "--ray-client-server-port=3" in head
