"""From names to flags: a run's presets on top of each other, then the user's settings.

Later wins: base, algorithm, model, data, run, hardware; then what each of them has ``with`` the algorithm, hardware and
mode that were chosen; then ``--set``; then the flags after ``--``. What follows from others (global batch, groups at
once, reference model) is worked out last, where nobody has said it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from april.errors import UsageError
from april.launch.presets.catalog import DEFAULTS, Catalog
from april.launch.presets.files import Flag, Preset
from april.launch.quickstart import model_flags
from april.launch.run import flags as flag_words

DEVICES: Mapping[str, str] = {"cpu": "cpu", "nvidia": "cuda", "amd": "rocm"}
"""``april train --device`` by vendor."""
OVER_SAMPLING = 2
"""Groups at once per group that is trained, unless told: APRIL's 64 for 32."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What of the overlay is on: active partial rollouts, speculation."""

    name: str
    april: bool
    spec: bool


MODES: Mapping[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode("sync", april=False, spec=False),
        Mode("april", april=True, spec=False),
        Mode("spec", april=False, spec=True),
        Mode("april+spec", april=True, spec=True),
    )
}


@dataclass(frozen=True, slots=True)
class Places:
    """Folders: of models, of data, of this run; ``made`` is where models go that are made here, by name."""

    models: str
    data: str
    out: str
    made: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for; None where the preset decides. ``host``: slime or miles."""

    preset: str
    places: Places
    mode: str = "april"
    hardware: str | None = None
    algorithm: str | None = None
    nodes: int = 1
    asynchronous: bool = False
    host: str = "slime"
    sets: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """A run in full. ``flags`` are the host's and those of ours that reach its workers."""

    name: str
    model: Preset
    data: Preset
    algorithm: Preset
    hardware: Preset
    mode: Mode
    nodes: int
    asynchronous: bool
    flags: Mapping[str, Flag]
    environment: Mapping[str, str]
    files: tuple[str, ...]

    @property
    def architecture(self) -> Mapping[str, Any]:
        """The model's, in the names of a Hugging Face config.json."""
        found: Mapping[str, Any] = self.model.own["architecture"]
        return found

    @property
    def vendor(self) -> str:
        """``cpu``, ``nvidia`` or ``amd``."""
        return str(self.hardware.own["vendor"])

    @property
    def gpus_per_node(self) -> int:
        """Devices of a node; on a CPU they are only counted."""
        return int(self.hardware.own["gpus_per_node"])

    def train_flags(self) -> list[str]:
        """The flags of ``april train``, ours first."""
        spec = ["--specrollout", "on"] if self.mode.spec else []
        asynchronous = ["--async"] if self.asynchronous else []
        ours = ["--device", DEVICES[self.vendor], "--april", "on" if self.mode.april else "off", *spec, *asynchronous]
        return [*ours, *flag_words.words(self.flags)]


def resolve(request: Request, catalog: Catalog) -> Launch:
    """The run that a request names.

    Raises:
        UsageError: for an unknown name or a setting that cannot be read.
    """
    if request.mode not in MODES:
        raise UsageError(f"--mode {request.mode}: use {', '.join(MODES)}")
    if request.nodes < 1:
        raise UsageError(f"--nodes {request.nodes}: at least 1")
    run = catalog.run(request.preset)
    named = {key: getattr(request, key) or run.own.get(key) or default for key, default in DEFAULTS.items()}
    algorithm, hardware = catalog.get("algorithms", named["algorithm"]), catalog.get("hardware", named["hardware"])
    model, data = catalog.get("models", run.own["model"]), catalog.get("data", run.own["data"])
    mode = MODES[request.mode]
    layers = [catalog.base(), algorithm, model, data, run, hardware]
    flags = _layered(layers, _active(request, mode, algorithm, hardware), model_words(model))
    flags |= _places_of_nodes(flags, hardware, request)
    if "custom-rm-path" not in flags and "rewards" in data.own:
        flags.setdefault("rm-type", data.own["rewards"]["thinks" if model.own.get("thinks") else "plain"])
    flags = {"hf-checkpoint": _checkpoint(model, request.places), "ref-load": None, **flags}
    given, variables = flag_words.settings(request.sets)
    flags |= given | flag_words.parse(request.extra)
    _derive(flags, mode)
    return Launch(
        name=request.preset,
        model=model,
        data=data,
        algorithm=algorithm,
        hardware=hardware,
        mode=mode,
        nodes=request.nodes,
        asynchronous=request.asynchronous,
        flags={
            name: _filled(value, request) for name, value in flags.items() if value is not None and value is not False
        },
        environment=_environment(layers, variables),
        files=tuple(dict.fromkeys(path for layer in layers for path in layer.files)),
    )


def model_words(model: Preset) -> dict[str, Flag]:
    """Megatron's flags of a model's architecture."""
    found = flag_words.parse(model_flags.from_config(model.own["architecture"]))
    return {name: int(value) if isinstance(value, str) and value.isdigit() else value for name, value in found.items()}


def _active(request: Request, mode: Mode, algorithm: Preset, hardware: Preset) -> set[str]:
    """The cases (``with``) that hold."""
    switches = {"april": mode.april, "spec": mode.spec, "async": request.asynchronous}
    chosen = {algorithm.name, hardware.name, hardware.own["vendor"]}
    return chosen | {name for name, on in switches.items() if on}


def _layered(layers: list[Preset], active: set[str], architecture: Mapping[str, Flag]) -> dict[str, Flag]:
    flags: dict[str, Flag] = {}
    for layer in layers:
        flags |= architecture if layer.kind == "models" else {}
        flags |= layer.flags
    for layer in layers:
        for case, some in layer.cases.items():
            flags |= some if case in active else {}
    return flags


def _places_of_nodes(flags: Mapping[str, Flag], hardware: Preset, request: Request) -> dict[str, Flag]:
    """How many devices trainer and engines have: shared, or where they work at the same time half each."""
    found: dict[str, Flag] = {"actor-num-nodes": request.nodes}
    engines = flags.get("rollout-num-gpus")
    if request.asynchronous and flags.get("colocate"):
        half = int(hardware.own["gpus_per_node"]) // 2
        found |= {"colocate": False, "actor-num-gpus-per-node": half}
        engines = half
    if isinstance(engines, int):
        found["rollout-num-gpus"] = request.nodes * engines
    return found


def _checkpoint(model: Preset, places: Places) -> str:
    made = str(model.own.get("made"))
    if made in places.made:
        return places.made[made]
    return f"{places.models}/{str(model.own['checkpoint']).rpartition('/')[2]}"


def _derive(flags: dict[str, Flag], mode: Mode) -> None:
    """What follows from other flags, where it was not given."""
    if flags.get("ref-load") is None:
        flags["ref-load"] = flags["hf-checkpoint"]
    batch, group = whole(flags, "rollout-batch-size"), whole(flags, "n-samples-per-prompt")
    if flags.get("global-batch-size") is None:
        flags["global-batch-size"] = batch * group // whole(flags, "num-steps-per-rollout", 1)
    if mode.april and flags.get("over-sampling-batch-size") is None:
        flags["over-sampling-batch-size"] = OVER_SAMPLING * batch


def whole(flags: Mapping[str, Flag], name: str, default: int = 0) -> int:
    """A flag that counts something, at least 1 where it is given.

    Raises:
        UsageError: when it is no whole number above 0.
    """
    value = flags.get(name)
    if value is None or value is False:
        return default
    try:
        found = int(str(value))
    except ValueError:
        found = 0
    if found < 1:
        raise UsageError(f"--{name} is {value}: it must be a whole number, at least 1")
    return found


def _filled(value: Flag, request: Request) -> Flag:
    """A value with the folders and the host's name in place of ``{models}``, ``{data}``, ``{out}`` and ``{host}``."""
    if isinstance(value, list):
        return [_filled(each, request) for each in value]
    if not isinstance(value, str):
        return value
    places = request.places
    known = {"models": places.models, "data": places.data, "out": places.out, "host": request.host}
    for name, text in known.items():
        value = value.replace("{" + name + "}", text)
    return value


def _environment(layers: list[Preset], given: Mapping[str, str | None]) -> dict[str, str]:
    found: dict[str, str | None] = {}
    for layer in layers:
        found |= layer.environment
    found |= given
    return {name: value for name, value in found.items() if value is not None}
