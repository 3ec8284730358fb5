"""``april launch``: a run by the name of its preset, on this machine, or as the file of a cluster job."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from april.errors import UsageError
from april.hosts import NAMES, Host
from april.launch import folders
from april.launch.arguments import UsageParser
from april.launch.doctor.reading import hosts
from april.launch.jobs.job import CONTAINERS, KINDS, Job
from april.launch.jobs.render import render
from april.launch.presets.catalog import Catalog
from april.launch.run import checks, known, prepare, rules, show
from april.launch.run.resolve import MODES, Launch, Places, Request, resolve

LONGEST_NAME = 47
"""Of a job."""
FORWARDED = "APRIL_ENVIRONMENT"
"""Names of variables that the workers of a cluster that is not ours get too."""
FILES = {"ray": "job.sh", "slurm": "job.sbatch", "kubernetes": "job.yaml"}
SUBMIT = {"ray": "bash", "slurm": "sbatch", "kubernetes": "kubectl apply -f"}


def parser() -> argparse.ArgumentParser:
    """The flags of the command; what follows ``--`` is the host's."""
    made = UsageParser(
        prog="april launch",
        allow_abbrev=False,
        usage="april launch PRESET [flags] [-- flags of slime, Megatron, --sglang-*, --april-*, --specrollout-*]",
        description="Train by the name of a preset, MODEL-DATA; april presets list has them, docs/launch.md says more.",
    )
    made.add_argument("preset", metavar="PRESET", help="MODEL-DATA, or a path to a YAML file that extends one")
    made.add_argument("--hardware", metavar="H", help="cpu, h100x8, mi300x-8, ... (default: the preset's)")
    made.add_argument("--mode", default="april", metavar="MODE", help=f"{', '.join(MODES)} (default: april)")
    made.add_argument("--algorithm", metavar="A", help="grpo, dapo, gspo, reinforce++ (default: the preset's)")
    made.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of this hardware (default: 1)")
    made.add_argument(
        "--async",
        dest="asynchronous",
        action="store_true",
        help="generate the next rollout while this one is trained; half of the devices each",
    )
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a flag by its name (lr=2e-6; null leaves it out), or env.NAME=VALUE; may be repeated",
    )
    made.add_argument("--host", default="auto", help="auto, slime or miles")
    made.add_argument("--slime-dir", metavar="DIR", help="slime's source tree; default: $SLIME_DIR")
    made.add_argument("--models", metavar="DIR", help="where model folders are (default: $APRIL_MODELS, or models)")
    made.add_argument("--data", metavar="DIR", help="where data sets are (default: $APRIL_DATA, or data)")
    made.add_argument("--cache-dir", metavar="DIR", help="where models that are made here are kept")
    made.add_argument("--out", metavar="DIR", help="the run's folder (default: runs/PRESET-TIME)")
    made.add_argument("--quiet", action="store_true", help="output of the host to the run's log only")
    made.add_argument("--dry-run", action="store_true", help="print what would run, and start and write nothing")
    made.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    _add_job_flags(made)
    return made


def _add_job_flags(made: argparse.ArgumentParser) -> None:
    job = made.add_argument_group("cluster jobs")
    job.add_argument("--job", choices=KINDS, help="write the job file of this scheduler instead of training here")
    job.add_argument("--time", default="24:00:00", metavar="T", help="walltime (default: 24:00:00)")
    job.add_argument("--partition", metavar="P", help="SLURM's partition, Kubernetes' namespace")
    job.add_argument("--image", metavar="I", help="container image (default: the hardware's)")
    job.add_argument("--container", default="apptainer", choices=CONTAINERS, help="how SLURM starts the image")
    job.add_argument(
        "--mount", action="append", default=[], metavar="DIR", help="folder that the container sees; may be repeated"
    )


def run(argv: list[str]) -> int:
    """Resolve, check, and show, write or train; returns the exit code.

    Raises:
        UsageError: for what is wrong before anything has started.
    """
    place = argv.index("--") if "--" in argv else len(argv)
    mine, theirs = argv[:place], argv[place + 1 :]
    given = parser().parse_args(mine)
    given.began = time.strftime("%Y%m%d-%H%M%S")
    host = _host(given)
    environ = _environ(given)
    made = prepare.folders(given.cache_dir, environ)
    launch = resolve(_request(given, theirs, made, host.name if host else "slime"), Catalog.of_environment(environ))
    rules.check(launch)
    if host is not None:
        known.check([word.split("=", 1)[0] for word in launch.train_flags() if word.startswith("--")], host)
    if given.dry_run:
        return _dry_run(given, launch, made)
    return _write_job(given, launch, made) if given.job else _train(given, launch, made)


def _environ(given: argparse.Namespace) -> dict[str, str]:
    tree = {"SLIME_DIR": given.slime_dir} if given.slime_dir else {}
    return {**os.environ, **tree}


def _host(given: argparse.Namespace) -> Host | None:
    """The host that is here; None where there is none: a job's nodes have it, and april train fetches one."""
    if given.host not in ("auto", *NAMES):
        raise UsageError(f"unknown host {given.host!r}: use auto, {' or '.join(NAMES)}")
    found = hosts.read(_host_name(given) if given.job else given.host, _environ(given))
    if found.fault and not (given.dry_run or given.job):
        raise UsageError(found.fault)
    return found.found


def _host_name(given: argparse.Namespace) -> str:
    """The host of a job."""
    return str(given.host) if given.host in NAMES else "slime"


def _request(given: argparse.Namespace, theirs: list[str], made: Mapping[str, str], host: str) -> Request:
    def place(value: str | None, variable: str, default: str) -> str:
        return str(Path(value or os.environ.get(variable) or default).absolute())

    out = given.out or f"runs/{_name(given)}"
    places = Places(
        models=place(given.models, "APRIL_MODELS", "models"),
        data=place(given.data, "APRIL_DATA", "data"),
        out=place(out, "", ""),
        made=made,
    )
    return Request(
        preset=given.preset,
        places=places,
        mode=given.mode,
        hardware=given.hardware,
        algorithm=given.algorithm,
        nodes=given.nodes,
        asynchronous=given.asynchronous,
        host=given.host if given.host in NAMES else host,
        sets=tuple(given.set),
        extra=tuple(theirs),
    )


def _name(given: argparse.Namespace) -> str:
    """Of the run's folder; with the time, unless nothing is written."""
    return _stem(given) if given.dry_run else f"{_stem(given)}-{given.began}"


def _words(given: argparse.Namespace, launch: Launch, out: Path) -> list[str]:
    """The command on this machine."""
    tree = ["--slime-dir", given.slime_dir] if given.slime_dir else []
    quiet = ["--quiet"] if given.quiet else []
    ours = [*tree, *quiet, *_nodes(launch), "--run-dir", str(out / "run")]
    return ["april", "train", "--host", given.host, *ours, *launch.train_flags()]


def _nodes(launch: Launch) -> list[str]:
    """On a CPU this machine can be several nodes."""
    several = launch.nodes > 1 and launch.vendor == "cpu" and not os.environ.get("RAY_ADDRESS")
    return ["--nodes", str(launch.nodes)] if several else []


def _out(given: argparse.Namespace) -> Path:
    return Path(given.out or f"runs/{_name(given)}").absolute()


def _dry_run(given: argparse.Namespace, launch: Launch, made: Mapping[str, str]) -> int:
    """Print all that a run would be; what would stop it on this machine goes to stderr."""
    out = _out(given)
    launch = _agreed(launch, strict=False)
    job = render(_job(given, launch), given.job) if given.job else None
    words = list(_job(given, launch).command) if given.job else _words(given, launch, out)
    stops = [] if given.job else list(checks.findings(launch, made, _environ(given), out))
    for said in stops:
        print(f"april: would not start here: {said}", file=sys.stderr)
    if given.json:
        print(json.dumps({**show.document(launch), "command": words, "job": job, "findings": stops}))
    else:
        print(show.dry_run(launch, words, job), end="")
    return 0


def _agreed(launch: Launch, strict: bool = True) -> Launch:
    """The launch with its model folder's own numbers."""
    try:
        return dataclasses.replace(launch, flags={**launch.flags, **checks.agreed(launch)})
    except UsageError:
        if strict:
            raise
        return launch  # a dry run reports it among its findings


def _job(given: argparse.Namespace, launch: Launch) -> Job:
    """The cluster job; which devices a process sees is the job's own business."""
    hidden = set(checks.VISIBLE.values())
    return Job(
        name="".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in _title(given, launch)),
        command=("april", "train", "--host", _host_name(given), *launch.train_flags()),
        environment={name: value for name, value in launch.environment.items() if name not in hidden},
        nodes=launch.nodes,
        gpus_per_node=launch.gpus_per_node,
        hardware=launch.hardware.name,
        vendor=launch.vendor,
        image=given.image or str(launch.hardware.own["image"]),
        run_dir=str(_out(given)),
        walltime=given.time,
        partition=given.partition,
        slime_dir=given.slime_dir,
        mounts=tuple(given.mount),
        container=given.container,
    )


def _title(given: argparse.Namespace, launch: Launch) -> str:
    """The job's name: preset and mode, as far as schedulers take it."""
    room = LONGEST_NAME - len(launch.mode.name) - 1
    return f"{_stem(given)[:room].rstrip('._-')}-{launch.mode.name}"


def _stem(given: argparse.Namespace) -> str:
    return Path(given.preset).stem if given.preset.endswith((".yaml", ".yml")) else str(given.preset)


def _write_job(given: argparse.Namespace, launch: Launch, made: Mapping[str, str]) -> int:
    """Write the job file and what a run stores; says how to submit it."""
    launch = _agreed(launch)
    job = _job(given, launch)
    text = render(job, given.job)
    out = folders.empty("--out", str(_out(given)), "")
    _make(given, launch, made, out)
    show.store(launch, job.command, job.environment, out)
    path = out / FILES[given.job]
    path.write_text(text, encoding="utf-8")
    print(f"april: {SUBMIT[given.job]} {path}", file=sys.stderr)
    if given.json:
        print(json.dumps({"out": str(out), "job": str(path), "submit": f"{SUBMIT[given.job]} {path}"}))
    return 0


def _train(given: argparse.Namespace, launch: Launch, made: Mapping[str, str]) -> int:
    """Train on this machine: april train, in this process, with its own supervision."""
    from april.launch.train import command

    checks.check(launch, made, _environ(given), _out(given))
    out = folders.empty("--out", str(_out(given)), "")
    try:
        _make(given, launch, made, out)
        launch = _agreed(launch)
        words = _words(given, launch, out)
        environment = {name: os.environ.get(name, value) for name, value in launch.environment.items()}
        environment[FORWARDED] = ",".join(launch.environment)
        show.store(launch, words, environment, out)
        os.environ.update(environment)
        code = command.run(words[2:])
    except UsageError:
        shutil.rmtree(out, ignore_errors=True)
        raise
    if code == UsageError.exit_code:
        shutil.rmtree(out, ignore_errors=True)  # nothing has run: the same command, put right, may use the name again
    if given.json:
        print(json.dumps({"out": str(out), "exit_code": code}))
    return code


def _make(given: argparse.Namespace, launch: Launch, made: Mapping[str, str], out: Path) -> None:
    """What can be made here of model and data."""
    if prepare.makes_model(launch, made):
        prepare.model(given.cache_dir)
    if prepare.makes_prompts(launch.data):
        path = Path(str(launch.flags["prompt-data"]))
        if path.parent == out:  # else the user has named others
            prepare.prompts(path, seed=0)
