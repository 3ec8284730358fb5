"""What a cluster job is, checked once. Rendering it is in ``render.py``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from april.errors import UsageError

KINDS = ("ray", "slurm", "kubernetes")
VENDORS = ("nvidia", "amd", "cpu")
CONTAINERS = ("none", "apptainer", "enroot", "podman")

NAME = re.compile(r"[A-Za-z]([A-Za-z0-9._-]{0,45}[A-Za-z0-9])?")
"""KubeRay's bound for the name of a RayJob, which begins with a letter."""
WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""What stands where a scheduler allows no quoting."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
WALLTIME = re.compile(r"(\d+-)?\d{1,3}:\d{2}(:\d{2})?|\d+-\d{1,2}|\d+")
"""SLURM's forms: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
IMAGE = re.compile(r"[A-Za-z0-9./_:@%+#~-]+")
NAMES_OF_THE_JOB = frozenset({"RAY_ADDRESS", "APRIL_RUN_DIR", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"})


@dataclass(frozen=True, slots=True)
class Job:
    """One run on a cluster, whichever scheduler starts it.

    name
        Of the job: a letter, then letters, digits, dots, dashes, underscores; at most 47 in all.
    command
        The run's words, ``("april", "train", ...)``, without ``--run-dir``: each attempt of the job adds
        ``--run-dir RUN_DIR/attempt-N``. What has to survive an attempt is below ``--save`` (and ``--load``).
    environment
        Of every process of the run, on every node.
    nodes, gpus_per_node
        Equal nodes; on ``cpu`` the devices are logical.
    hardware
        A preset's name, ``mi300x-8``: what Kubernetes' node selectors are derived from.
    vendor
        ``nvidia``, ``amd`` or ``cpu``.
    image
        The container image that holds the stack and the overlay; "" with ``container`` none. Apptainer takes a ``.sif``
        file or ``docker://NAME``, the others a name.
    run_dir
        Absolute folder that every node sees.
    walltime
        SLURM's format; on Kubernetes the deadline, with Ray only said in the script.
    partition
        SLURM's partition; Kubernetes: the namespace; None: the scheduler's default.
    slime_dir
        slime's tree as the nodes (in the container) see it; None: the image's own.
    mounts
        Absolute folders that the container sees: ``/SOURCE`` (under the same path), ``/SOURCE:/TARGET``, or on
        Kubernetes ``pvc:CLAIM:/TARGET``, a persistent volume claim.
    container
        How SLURM starts the image: one of CONTAINERS.
    signal_s
        Seconds before the end of the walltime at which a SLURM job puts itself in the queue again.

    Raises UsageError for what no scheduler would take, naming the field.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    nodes: int
    gpus_per_node: int
    hardware: str
    vendor: str
    image: str
    run_dir: str
    walltime: str
    partition: str | None = None
    slime_dir: str | None = None
    mounts: tuple[str, ...] = field(default=())
    container: str = "apptainer"
    signal_s: int = 300

    def __post_init__(self) -> None:
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))
        named = "a letter, then at most 46 letters, digits, '.', '_' or '-', the last no sign"
        _check(NAME.fullmatch(self.name) is not None, "name", self.name, named)
        _check(self.vendor in VENDORS, "vendor", self.vendor, f"one of {', '.join(VENDORS)}")
        _check(self.container in CONTAINERS, "container", self.container, f"one of {', '.join(CONTAINERS)}")
        _check(self.nodes >= 1, "nodes", self.nodes, "at least 1")
        _check(self.gpus_per_node >= 1, "gpus_per_node", self.gpus_per_node, "at least 1")
        _check(WORD.fullmatch(self.hardware) is not None, "hardware", self.hardware, "the name of a hardware preset")
        _check(WALLTIME.fullmatch(self.walltime) is not None, "walltime", self.walltime, "[D-]HH:MM:SS or minutes")
        plain = self.partition is None or WORD.fullmatch(self.partition) is not None
        _check(plain, "partition", self.partition, "letters, digits, '.', '_' or '-'")
        _check(0 < self.signal_s < self.seconds, "signal_s", self.signal_s, "above 0 and below the walltime")
        self._check_command()
        self._check_environment()
        self._check_paths()

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """``mounts``, read."""
        return tuple(volume(mount) for mount in self.mounts)

    @property
    def resumes(self) -> bool:
        """Whether another attempt goes on from the last checkpoint: ``--save`` and ``--load`` are one folder."""
        given = {flag: values[-1] for flag in ("--save", "--load") if (values := _values(self.command, flag))}
        return len(given) == 2 and given["--save"].rstrip("/") == given["--load"].rstrip("/")

    @property
    def seconds(self) -> int:
        """The walltime in seconds."""
        days, dash, rest = self.walltime.rpartition("-")
        parts = [int(part) for part in rest.split(":")]
        if dash:  # D-H[:M[:S]]
            hours, minutes, seconds = [*parts, 0, 0][:3]
        elif len(parts) == 3:
            hours, minutes, seconds = parts
        else:  # M[:S]
            hours, minutes, seconds = 0, *[*parts, 0][:2]
        return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds

    def _check_command(self) -> None:
        _check(bool(self.command), "command", "empty", "the words of the run: april train ...")
        _check_text("command", self.command)
        given = [word for word in self.command if word.split("=", 1)[0] == "--run-dir"]
        _check(not given, "command", f"given {' '.join(given)}", "without it: run_dir names it, attempt by attempt")

    def _check_environment(self) -> None:
        for name, value in self.environment.items():
            _check(VARIABLE.fullmatch(name) is not None, "environment", repr(name), "a name that a shell can set")
            _check(name not in NAMES_OF_THE_JOB, "environment", name, "left to the job, which sets it on each node")
            _check_text(f"environment {name}", [value])

    def _check_paths(self) -> None:
        for what, path in (("run_dir", self.run_dir), ("slime_dir", self.slime_dir or "/")):
            _check_text(what, [path])
            right = path.startswith("/") and not set(path) & set(",:")
            _check(right, what, path, "an absolute path without ',' and ':', which all nodes share")
        _check_text("mounts", self.mounts)
        for mount in self.mounts:
            volume(mount)
        _check(self.image == "" or IMAGE.fullmatch(self.image) is not None, "image", self.image, "an image's name")


@dataclass(frozen=True, slots=True)
class Volume:
    """A folder that the container sees under ``target``: the node's ``source``, or the ``claim`` of Kubernetes."""

    source: str
    target: str
    claim: str | None = None
    made: bool = False
    """Whether the node may have to make the folder."""

    @property
    def both(self) -> str:
        """``SOURCE:TARGET``, as container programs take it."""
        return f"{self.source}:{self.target}"


def volume(mount: str) -> Volume:
    """Read one of a job's ``mounts``. Raises UsageError."""
    claim: str | None = None
    places = mount
    if mount.startswith("pvc:"):
        claim, _, places = mount.removeprefix("pvc:").partition(":")
    sides = places.split(":")
    right = all(side.startswith("/") and "," not in side for side in sides)
    if claim is None:
        right = right and len(sides) <= 2
    else:
        right = right and len(sides) == 1 and claim.islower() and WORD.fullmatch(claim) is not None
    _check(right, "mounts", mount, "/SOURCE, /SOURCE:/TARGET or pvc:CLAIM:/TARGET, without commas")
    return Volume("" if claim is not None else sides[0], sides[-1], claim)


def _values(command: tuple[str, ...], flag: str) -> list[str]:
    """What ``command`` gives ``flag``, the value that counts last."""
    apart = [value for word, value in itertools.pairwise(command) if word == flag]
    return apart + [word.split("=", 1)[1] for word in command if word.startswith(f"{flag}=")]


def _check_text(what: str, values: Iterable[str]) -> None:
    for value in values:
        plain = "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
        _check(plain, what, repr(value), "text without NUL characters and bytes that are no UTF-8")


def _check(right: bool, what: str, value: object, want: str) -> None:
    if not right:
        raise UsageError(f"job: {what} is {value}: it must be {want}")
