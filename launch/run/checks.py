"""What this machine cannot run of a launch: one line each, in a second or two, before anything starts.

Folders, prompts, ports and disk are april train's own checks (launch/train/preflight.py), made here already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from april.errors import UsageError
from april.launch.doctor.reading import device as accelerator
from april.launch.presets.files import Flag
from april.launch.run import checkpoint, flags, prepare, ray_nodes, rules
from april.launch.run.resolve import DEVICES, Launch
from april.launch.train import preflight

VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


def findings(launch: Launch, made: Mapping[str, str], environ: Mapping[str, str], out: Path) -> Iterator[str]:
    """What is wrong, line by line, each found apart from the others; then what april train itself would refuse."""
    checks: list[Callable[[], None]] = [
        lambda: _model(launch, made),
        lambda: _data(launch),
        lambda: _device(launch, environ),
        lambda: _nodes(launch, environ),
        lambda: preflight.check_disk(str(out)),
    ]
    found = [said for check in checks if (said := _said(check))]
    yield from found
    if not found and (said := _said(lambda: _train(launch, made))):
        yield said


def _said(check: Callable[[], None]) -> str | None:
    try:
        check()
    except UsageError as error:
        return str(error)
    return None


def check(launch: Launch, made: Mapping[str, str], environ: Mapping[str, str], out: Path) -> None:
    """Raise the first finding as a UsageError."""
    for said in findings(launch, made, environ, out):
        raise UsageError(said)


def agreed(launch: Launch) -> Mapping[str, Flag]:
    """Flags that take over numbers from the model's folder that the preset has rounded; the hosts compare exactly."""
    folder = Path(str(launch.flags["hf-checkpoint"]))
    if not folder.is_dir():
        return {}
    found = checkpoint.check(folder, launch.architecture, launch.model.name)
    return {"norm-epsilon": repr(found["rms_norm_eps"])}


def _model(launch: Launch, made: Mapping[str, str]) -> None:
    folder = Path(str(launch.flags["hf-checkpoint"]))
    if folder.is_dir():
        checkpoint.check(folder, launch.architecture, launch.model.name)
    elif not prepare.makes_model(launch, made):
        source = launch.model.own["checkpoint"]
        raise UsageError(
            f"--hf-checkpoint {folder}: no such folder; hf download {source} --local-dir {folder}, or name another by "
            "--models or --set hf-checkpoint=DIR"
        )


def _data(launch: Launch) -> None:
    """The prompts to train and to evaluate on, and the columns of a parquet file."""
    if not prepare.makes_prompts(launch.data):
        source = launch.data.own.get("source")
        _file("--prompt-data", str(launch.flags["prompt-data"]), launch, f"it is made of {source}")
    evaluated = launch.flags.get("eval-prompt-data")
    for path in evaluated[1::2] if isinstance(evaluated, list) else []:
        _file("--eval-prompt-data", str(path), launch, "or train without: --set eval-interval=null")


def _file(flag: str, given: str, launch: Launch, hint: str) -> None:
    path = Path(given.partition("@[")[0])
    if not path.is_file():
        raise UsageError(f"{flag} {path}: no such file; give the folder of the data by --data ({hint})")
    if path.suffix == ".parquet" and flag == "--prompt-data":
        _columns(path, launch.flags)


def _columns(path: Path, given: Mapping[str, Any]) -> None:
    import pyarrow
    import pyarrow.parquet

    try:
        names = pyarrow.parquet.read_schema(path).names
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"--prompt-data {path}: no parquet file ({' '.join(str(error).split())})") from error
    for flag in ("input-key", "label-key"):
        if (key := given.get(flag)) is not None and key not in names:
            raise UsageError(f"--prompt-data {path}: it has no column {key!r}; --{flag} may be {', '.join(names)}")


def _device(launch: Launch, environ: Mapping[str, str]) -> None:
    """That this machine has the devices of a node. Of a cluster (RAY_ADDRESS) it need not be one."""
    if launch.vendor == "cpu" or environ.get("RAY_ADDRESS"):
        return
    wanted = DEVICES[launch.vendor]
    found = accelerator.read("auto", "", environ)
    needed = min(launch.gpus_per_node, rules.devices(launch))
    if found.name != wanted:
        raise UsageError(
            f"--hardware {launch.hardware.name} wants {needed} {launch.vendor.upper()} GPUs, there is {found.name} "
            "only; use --hardware cpu, --job, or RAY_ADDRESS of a cluster"
        )
    listed = environ.get(VISIBLE[launch.vendor], "")
    visible = len(listed.split(",")) if listed else len(found.gpus)
    if visible < needed:
        raise UsageError(
            f"--hardware {launch.hardware.name} wants {needed} GPUs, {visible} are here; lower --set "
            "actor-num-gpus-per-node=N, or name another --hardware"
        )


def _nodes(launch: Launch, environ: Mapping[str, str]) -> None:
    address = environ.get("RAY_ADDRESS")
    if address and ":" in address and "://" not in address:
        ray_nodes.check(address, launch.nodes, min(launch.gpus_per_node, rules.devices(launch)))
    elif not address and launch.nodes > 1 and launch.vendor != "cpu":
        raise UsageError(
            f"--nodes {launch.nodes}: this machine is one node of GPUs; use --job slurm, ray or kubernetes, or set "
            "RAY_ADDRESS"
        )


def _train(launch: Launch, made: Mapping[str, str]) -> None:
    """What april train checks itself, of files that need not be made first."""
    given = dict(launch.flags)
    if prepare.makes_prompts(launch.data):
        del given["prompt-data"]
    if prepare.makes_model(launch, made) and not Path(str(given["hf-checkpoint"])).is_dir():
        return
    preflight.check(flags.words(given), DEVICES[launch.vendor])
