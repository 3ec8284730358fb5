"""Ray for one run: an own local cluster unless the user's environment names one (``RAY_ADDRESS``)."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

WORKER_HOOK = "april.patches.boot.install"
OBJECT_STORE_BYTES = 512 * 1024**2


def preload() -> None:
    """Import Ray while the host's parser is busy."""
    import ray  # noqa: F401


@contextlib.contextmanager
def started(args: Namespace, run_dir: Path) -> Iterator[None]:
    """Ray with the hook in every worker; shut down at the end.

    A cluster of our own has a session directory of its own under the system's temporary directory (socket paths must be
    short); its logs are moved to the run directory.
    """
    import ray

    runtime_env = {"worker_process_setup_hook": WORKER_HOOK, "env_vars": _environment()}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(runtime_env=runtime_env)
        try:
            yield
        finally:
            ray.shutdown()
        return
    session = Path(tempfile.mkdtemp(prefix="april-ray-"))
    try:
        ray.init(
            address="local",
            num_gpus=_devices(args) if os.environ["APRIL_DEVICE"] == "cpu" else None,
            num_cpus=8 * max(1, _devices(args)),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES if os.environ["APRIL_DEVICE"] == "cpu" else None,
            runtime_env=runtime_env,
            _temp_dir=str(session),
        )
        yield
    finally:
        ray.shutdown()
        _keep_logs(session, run_dir / "logs" / "ray")
        shutil.rmtree(session, ignore_errors=True)


def _devices(args: Namespace) -> int:
    """How many devices the placement groups may ask for in all."""
    return int(args.actor_num_nodes * args.actor_num_gpus_per_node + (args.rollout_num_gpus or 0))


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("APRIL_") or name == "PYTHONPATH"}


def _keep_logs(session: Path, target: Path) -> None:
    logs = session / "session_latest" / "logs"
    if logs.exists():
        shutil.copytree(logs, target, dirs_exist_ok=True)
