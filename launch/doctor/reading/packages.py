"""What is installed: versions from metadata, torch's build from its source, the memory saver's libraries by content."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from . import Unread

PLUGIN_GROUP = "sglang.srt.plugins"
SAVER = "torch-memory-saver"
HIP_LIBRARY = b"libamdhip64.so"
CHUNKED = b"ROCmHIPImplementation"
"""The namespace compiled in for HIP below 7 only (torch_memory_saver, csrc/macro.h: TMS_ROCM_LEGACY_CHUNKED)."""


@dataclass(frozen=True)
class Torch:
    """torch, as its ``version.py`` says: ``build`` is cpu, cuda or rocm, ``runtime`` the version of CUDA or HIP."""

    version: str
    build: str
    runtime: str | None = None


@dataclass(frozen=True)
class Saver:
    """The libraries of torch_memory_saver: for which CUDA majors, whether for HIP, and whether HIP's are chunked."""

    cuda_majors: frozenset[int] = frozenset()
    hip: bool = False
    chunked: bool = False


@dataclass(frozen=True)
class Packages:
    """The Python that runs this, and what it has. ``torch`` and ``saver`` are None where not installed."""

    python: tuple[int, int, int]
    prefix: str
    versions: Mapping[str, str]
    plugins: frozenset[str]
    torch: Torch | Unread | None
    saver: Saver | Unread | None


def read(names: Iterable[str]) -> Packages:
    """The facts about the distributions ``names`` (normalized) and the two whose build matters."""
    return Packages(
        python=sys.version_info[:3],
        prefix=sys.prefix,
        versions={name: found for name in names if (found := _version(name)) is not None},
        plugins=frozenset(point.name for point in metadata.entry_points(group=PLUGIN_GROUP)),
        torch=_torch(),
        saver=_saver(),
    )


def constants(source: str) -> dict[str, object]:
    """The plain constants that a module assigns at its top level, without running it."""
    found: dict[str, object] = {}
    for node in ast.parse(source).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                found[target.id] = value.value
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> Torch | Unread | None:
    try:
        found = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(found.locate_file("torch/version.py")))
    try:
        said = constants(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        return Unread(f"{path}: {error}")
    version = str(said.get("__version__", found.version))
    if hip := said.get("hip"):
        return Torch(version, "rocm", str(hip))
    if cuda := said.get("cuda"):
        return Torch(version, "cuda", str(cuda))
    return Torch(version, "cpu")


def _saver() -> Saver | Unread | None:
    try:
        found = metadata.distribution(SAVER)
    except metadata.PackageNotFoundError:
        return None
    try:
        return saver_at(Path(str(found.locate_file(""))))
    except OSError as error:
        return Unread(f"torch_memory_saver's libraries: {error}")


def saver_at(folder: Path) -> Saver:
    """What the libraries in ``folder`` were built for.

    The suffix ``_cu12`` names CUDA's major. A library without a suffix is what torch_memory_saver loads on ROCm; in the
    wheel of 0.0.10 it is a copy of CUDA's, so its content decides.
    """
    majors: set[int] = set()
    hip = chunked = False
    for path in folder.glob("torch_memory_saver_hook_mode_*.so"):
        if suffix := re.search(r"_cu(\d+)\.", path.name):
            majors.add(int(suffix[1]))
            continue
        content = path.read_bytes()
        if HIP_LIBRARY in content:
            hip, chunked = True, chunked or CHUNKED in content
    return Saver(frozenset(majors), hip, chunked)
