"""Renders a job from the templates of this package."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from april.errors import UsageError
from april.launch.jobs import environment, quoting
from april.launch.jobs.job import KINDS, Job, Volume

TEMPLATES = Path(__file__).with_name("templates")
FILES = {"ray": "ray.sh.j2", "slurm": "slurm.sh.j2", "kubernetes": "kubernetes.yaml.j2"}
CPUS_PER_DEVICE = 8
"""Of a logical device on a CPU, as in a cluster that ``april train`` starts itself."""


def render(job: Job, kind: str) -> str:
    """The job file: a shell script (``ray``), an sbatch file (``slurm``) or YAML (``kubernetes``).

    Raises:
        UsageError: for an unknown kind, or a job that this kind cannot run.
    """
    if kind not in KINDS:
        raise UsageError(f"job: kind is {kind}: it must be one of {', '.join(KINDS)}")
    _refuse_what_it_lacks(job, kind)
    made = _templates()
    context = _context(job, kind)
    context["run"] = made.get_template("run.sh.j2").render(context)
    return str(made.get_template(FILES[kind]).render(context))


def _refuse_what_it_lacks(job: Job, kind: str) -> None:
    if not job.image and (kind == "kubernetes" or (kind == "slurm" and job.container != "none")):
        raise UsageError(f"job: image is empty: {kind} needs one" + (", or container none" if kind == "slurm" else ""))
    if kind == "kubernetes" and job.partition is not None and (not job.partition.islower() or "." in job.partition):
        raise UsageError(f"job: partition is {job.partition}: a namespace has no capitals and no dots")
    if kind != "kubernetes" and any(volume.claim for volume in job.volumes):
        raise UsageError(f"job: mounts has a pvc: that is for kubernetes, not for {kind}; use /SOURCE:/TARGET")


def _context(job: Job, kind: str) -> dict[str, Any]:
    variables = environment.of(job)
    return {
        "job": job,
        "vendor": job.vendor,
        "resumes": job.resumes,
        "environment": variables,
        "runtime_env": json.dumps({"env_vars": {**variables, "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}}),
        "logical_cpus": CPUS_PER_DEVICE * job.gpus_per_node,
        "name": job.name.lower().replace("_", "-").replace(".", "-"),
        "namespace": job.partition,
        "label": environment.LABELS.get(job.hardware),
        "resource": environment.RESOURCE.get(job.vendor),
        "ray_version": _ray_version(),
        "volumes": _with_run_dir(job) if kind == "kubernetes" else job.volumes,
    }


def _with_run_dir(job: Job) -> tuple[Volume, ...]:
    """The job's volumes, and the run directory where none of them holds it."""
    held = any(f"{job.run_dir}/".startswith(f"{volume.target.rstrip('/')}/") for volume in job.volumes)
    return job.volumes if held else (Volume(job.run_dir, job.run_dir, made=True), *job.volumes)


def _ray_version() -> str:
    pins = json.loads(resources.files("april.configs").joinpath("pins.json").read_text(encoding="utf-8"))
    return str(pins["ray"]["version"])


def _templates() -> Any:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(
        sh=quoting.sh,
        words=quoting.words,
        yaml=quoting.yaml,
        variable=quoting.variable,
        option=lambda name: f"--env={name}",
    )
    return made
