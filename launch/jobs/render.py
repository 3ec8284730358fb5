"""Renders a job from the templates of this package."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from april.errors import UsageError
from april.launch.jobs.job import KINDS, Job

TEMPLATES = Path(__file__).with_name("templates")


def render(job: Job, kind: str) -> str:
    """The job file: a shell script (``ray``), an sbatch file (``slurm``) or YAML (``kubernetes``).

    Raises:
        UsageError: for an unknown kind, or a job that this kind cannot run.
    """
    if kind not in KINDS:
        raise UsageError(f"job: kind is {kind}: it must be one of {', '.join(KINDS)}")
    raise NotImplementedError(kind)


def _environment() -> Any:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["sh"] = shlex.quote
    return made
