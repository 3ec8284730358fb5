"""Where the source of a package is read from: what is installed, a source tree, a wheel or an sdist.

Nothing is imported, unpacked or executed.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import re
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from april.errors import UsageError

DISTRIBUTIONS = {
    "sglang": "sglang",
    "slime": "slime",
    "miles": "miles-rl",
    "megatron": "megatron-core",
    "torch_memory_saver": "torch_memory_saver",
    "ray": "ray",
    "torch": "torch",
    "torchvision": "torchvision",
}
"""Distribution of each top-level package that we depend on in detail."""

UNKNOWN = "unknown"
UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error)
"""What reading a damaged or forbidden file raises."""
SETUPS = ("setup.py", "pyproject.toml")
_ROOTS = ("", "python/", "src/")
_TOLD = re.compile(rb"^_*version_*\s*=.*?[\"'](\d[^\"']*)[\"']", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """One version of one package, to be read.

    Attributes:
        package: its top-level module.
        label: how the user named it.
        version: as its own metadata says, or ``unknown``.
        read: the bytes of the file at a path relative to the package's parent, or None.
    """

    package: str
    label: str
    version: str
    read: Callable[[str], bytes | None]

    @functools.cached_property
    def _modules(self) -> dict[str, tuple[bytes | None, bool]]:
        return {}

    def module(self, name: str) -> bytes | None:
        """The source of a module by its dotted name, or None where there is none.

        Raises:
            UsageError: when it is there and cannot be read.
        """
        return self._load(name)[0]

    def is_package(self, name: str) -> bool:
        """Whether a module is a package's ``__init__``, from which relative imports count differently."""
        return self._load(name)[1]

    def _load(self, name: str) -> tuple[bytes | None, bool]:
        if name not in self._modules:
            path = name.replace(".", "/")
            try:
                plain = self.read(f"{path}.py")
                found = (plain, False) if plain is not None else (self.read(f"{path}/__init__.py"), True)
            except UNREADABLE as error:
                raise UsageError(f"{self.label}: {path} cannot be read ({error or type(error).__name__})") from error
            self._modules[name] = found
        return self._modules[name]


def installed(package: str) -> Source | None:
    """The package as ``import`` would find it, or None. Raises nothing for a broken one: it cannot be read then."""
    label = f"installed {DISTRIBUTIONS.get(package, package)}"
    spec = importlib.util.find_spec(package)
    try:
        version = importlib.metadata.version(DISTRIBUTIONS.get(package, package)) or UNKNOWN
    except (importlib.metadata.PackageNotFoundError, UnicodeDecodeError, TypeError):
        version = None
    places = [Path(place).parent for place in ((spec.submodule_search_locations or ()) if spec else ())]
    if not places:
        # Metadata without a package, or a module of that name that is no package: nothing of it can be what we need.
        nothing = Source(package, label, version or UNKNOWN, lambda path: None)
        return None if spec is None and version is None else nothing
    source = _tree(package, label, places)
    return Source(package, label, version or source.version, source.read)


def at(package: str, place: str) -> Source:
    """The package in a source tree, wheel or sdist.

    Raises:
        UsageError: when there is no such place, or the package is not in it.
    """
    try:
        return _at(package, place, Path(place).expanduser())
    except (*UNREADABLE, RuntimeError) as error:
        raise UsageError(f"{place} cannot be read ({error or type(error).__name__})") from error


def _at(package: str, place: str, path: Path) -> Source:
    if path.is_dir():
        nested = path.parent if path.name == package and (path / "__init__.py").is_file() else path
        source: Source | None = _tree(package, place, [nested / root for root in _ROOTS])
    elif path.is_file() and zipfile.is_zipfile(path):
        source = _wheel(package, path)
    elif path.is_file() and tarfile.is_tarfile(path):
        source = _sdist(package, path)
    else:
        what = "is neither a folder, a wheel nor an sdist" if path.exists() else "does not exist"
        raise UsageError(f"{place} {what}: give an unpacked tree, a .whl or a .tar.gz of {DISTRIBUTIONS[package]}")
    if source is None:
        raise UsageError(f"{place} holds no package {package}")
    return source


def in_history(package: str, clone: Path, revision: str) -> Source:
    """The package at a revision of a git clone, whatever is checked out.

    Raises:
        UsageError: when it is no clone, has no such revision, or that holds no such package.
    """

    def git(*words: str) -> bytes | None:
        try:
            done = subprocess.run(["git", "-C", str(clone), *words], capture_output=True)
        except OSError as error:
            raise UsageError(f"{clone}@{revision} needs git ({error.strerror})") from error
        return None if done.returncode else done.stdout

    if git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") is None:
        raise UsageError(f"{clone} is no git clone with the revision {revision}")
    held = (root for root in _ROOTS if git("cat-file", "-e", f"{revision}:{root}{package}") is not None)
    prefix = next(held, None)
    if prefix is None:
        raise UsageError(f"{clone} at {revision} holds no package {package}")
    files = [f"{revision}:{root}{setup}" for root in dict.fromkeys(("", prefix)) for setup in SETUPS]
    texts = ((git("show", file) or b"").decode("utf-8", "replace") for file in files)
    tag = re.fullmatch(r"v?(\d+\.\d[\w.]*)", revision)
    version = next((found for text in texts if (found := _setup_version(text, package))), tag[1] if tag else UNKNOWN)
    return Source(package, f"{clone}@{revision}", version, lambda path: git("show", f"{revision}:{prefix}{path}"))


def _tree(package: str, label: str, parents: Iterable[Path]) -> Source:
    places = [parent for parent in parents if (parent / package).is_dir()]
    if not places:
        raise UsageError(f"{label} holds no package {package}")

    def read(path: str) -> bytes | None:
        return next((file.read_bytes() for place in places if (file := place / path).is_file()), None)

    folders = dict.fromkeys(folder for place in places for folder in (place, place.parent))
    return Source(package, label, _version(package, read, folders), read)


def _version(package: str, read: Callable[[str], bytes | None], folders: Iterable[Path]) -> str:
    """What a tree says of its own version: unpacked metadata, else its set-up files."""
    name = DISTRIBUTIONS[package].replace("-", "_")
    for folder in folders:
        for pattern in (f"{name}-*.dist-info/METADATA", "PKG-INFO"):
            for file in folder.glob(pattern):
                if version := _metadata_version(file.read_text(errors="replace"), package):
                    return version
        for setup in SETUPS:
            file = folder / setup
            if file.is_file() and (version := _setup_version(file.read_text(errors="replace"), package)):
                return version
    for module in ("_version.py", "version.py"):
        if told := _TOLD.search(read(f"{package}/{module}") or b""):
            return told[1].decode()
    if package == "megatron":
        return _megatron_version(read("megatron/core/package_info.py"))
    return UNKNOWN


def _setup_version(text: str, package: str) -> str | None:
    """The version in a setup.py or pyproject.toml of the package."""
    if not re.search(rf"(?<![\w-])name\s*=\s*[\"']{re.escape(DISTRIBUTIONS[package])}[\"']", text):
        return None
    found = re.search(r"(?<![\w-])version\s*=\s*[\"'](\d[^\"']*)[\"']", text)
    return found[1] if found else None


def _megatron_version(info: bytes | None) -> str:
    """Megatron keeps its version as numbers."""
    if info is None:
        return UNKNOWN
    values: dict[str, str] = {}
    for node in ast.parse(info).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        ):
            values[node.targets[0].id] = str(node.value.value)
    try:
        return f"{values['MAJOR']}.{values['MINOR']}.{values['PATCH']}{values.get('PRE_RELEASE', '')}"
    except KeyError:
        return UNKNOWN


def _metadata_version(text: str, package: str) -> str | None:
    name = re.search(r"^Name: *(\S+)", text, re.MULTILINE)
    version = re.search(r"^Version: *(\S+)", text, re.MULTILINE)
    wanted = DISTRIBUTIONS[package].replace("_", "-")
    return version[1] if name and version and name[1].lower().replace("_", "-") == wanted.replace("_", "-") else None


def _wheel(package: str, path: Path) -> Source | None:
    archive = zipfile.ZipFile(path)
    names = set(archive.namelist())
    prefixes = [prefix for prefix in ("", *_data_folders(names)) if any(n.startswith(prefix + package) for n in names)]
    if not any(name.startswith(f"{prefix}{package}/") for prefix in prefixes for name in names):
        return None

    def read(member: str) -> bytes | None:
        return next((archive.read(prefix + member) for prefix in prefixes if prefix + member in names), None)

    metadata = [name for name in names if name.endswith(".dist-info/METADATA")]
    texts = (archive.read(name).decode("utf-8", "replace") for name in metadata)
    versions = (version for text in texts if (version := _metadata_version(text, package)))
    version = next(versions, None) or (_megatron_version(read("megatron/core/package_info.py")))
    return Source(package, str(path), version, read)


def _data_folders(names: set[str]) -> list[str]:
    found = {match[0] for name in names if (match := re.match(r"[^/]+\.data/(?:purelib|platlib)/", name))}
    return sorted(found)


def _sdist(package: str, path: Path) -> Source | None:
    with tarfile.open(path) as archive:
        members = {str(PurePosixPath(member.name)): member for member in archive.getmembers() if member.isfile()}
    tops = {name.split("/")[0] for name in members}
    prefixes = [f"{top}/{root}" for top in sorted(tops) for root in _ROOTS]
    prefixes = [p for p in prefixes if any(name.startswith(f"{p}{package}/") for name in members)]
    if not prefixes:
        return None

    def get(name: str) -> bytes | None:
        if name not in members:
            return None
        with tarfile.open(path) as archive:
            handle = archive.extractfile(members[name])
            return handle.read() if handle else None

    def read(member: str) -> bytes | None:
        return next((data for prefix in prefixes if (data := get(prefix + member)) is not None), None)

    infos = (get(f"{top}/PKG-INFO") or b"" for top in sorted(tops))
    versions = (version for info in infos if (version := _metadata_version(info.decode("utf-8", "replace"), package)))
    return Source(package, str(path), next(versions, UNKNOWN), read)
