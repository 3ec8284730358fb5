"""Chooses who serves ``import torch_memory_saver`` in this process: that package, or our surface of it.

Imports no PyTorch. Hosts find the package's libraries by its ``__file__`` and preload them into their workers, so our
module has one, beside an empty library of that name.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from april.errors import UsageError
from april.memory import build, tms

BACKENDS = ("auto", "april", "tms")
DEVICES = ("cpu", "cuda", "rocm")
NAME = "torch_memory_saver"
LIBRARY = f"{NAME}_hook_mode_preload"
CHOSEN = "APRIL_MEMORY"
"""In the environment of a run: ``april``, ``tms``, or empty for a run that releases nothing."""


def choose(backend: str, device: str, cuda_major: int | None = None) -> str:
    """``april`` or ``tms``: what ``backend`` comes down to on ``device``.

    ``auto`` is torch_memory_saver where it has a library for the device, else ours. ``cuda_major`` is that of PyTorch's
    build; None counts any of the package's CUDA libraries.

    Raises:
        UsageError: for an unknown name, and for ``tms`` where it has no library.
    """
    if backend not in BACKENDS or device not in DEVICES:
        raise UsageError(
            f"--memory-backend is {', '.join(BACKENDS)} on {', '.join(DEVICES)}, not {backend} on {device}"
        )
    works = has_library(device, cuda_major)
    if backend == "tms" and not works:
        raise UsageError(f"--memory-backend tms: {NAME} has no library for {device} here: use auto or april")
    return "tms" if works and backend != "april" else "april"


def has_library(device: str, cuda_major: int | None = None) -> bool:
    """Whether the installed torch_memory_saver carries a library for ``device``. Imports nothing of it."""
    found = importlib.util.find_spec(NAME) if NAME not in sys.modules else sys.modules[NAME].__spec__
    if found is None or found.origin is None or device == "cpu":
        return False
    package = Path(found.origin).parent
    libraries = [*package.glob(f"{LIBRARY}*.so"), *package.parent.glob(f"{LIBRARY}*.so")]
    if device == "cuda":
        return any(path.name.startswith(f"{LIBRARY}_cu{cuda_major or ''}") for path in libraries)
    # A wheel's library without a suffix is a copy of CUDA's: only what it is linked with tells.
    return any(b"libamdhip64" in path.read_bytes() for path in libraries if path.name.startswith(f"{LIBRARY}."))


def install(backend: str = "auto", device: str = "cpu", cuda_major: int | None = None) -> str:
    """Put the chosen one in place, in this process; returns ``april`` or ``tms``. Again: does nothing.

    Where torch_memory_saver was imported already, names that are bound to its object get ours.

    Raises:
        UsageError: as :func:`choose`, and where torch_memory_saver is in use.
        AprilError: where our core cannot be compiled.
    """
    chosen = choose(backend, device, cuda_major)
    if chosen == "tms" or serves():
        return chosen
    build.core()
    before = sys.modules.get(NAME)
    theirs = getattr(before, NAME, None)
    if getattr(theirs, "_impl", None) is not None:
        raise UsageError(f"--memory-backend april: {NAME} is in use in this process already")
    ours = _module(tracks=device == "cpu" and tms.whole_process_wanted())
    sys.modules[NAME] = ours
    if device != "cpu" and tms.whole_process_wanted():
        wrapt.register_post_import_hook(track_from_device, "torch.cuda")
    if before is not None and theirs is not None:
        _rebind(before, theirs, ours)
    return chosen


def install_chosen(environ: Mapping[str, str]) -> None:
    """What a process of a run does when it starts; raises as :func:`install` does."""
    if environ.get(CHOSEN) == "april":
        install("april", environ["APRIL_DEVICE"])


def serves() -> bool:
    """Whether ``import torch_memory_saver`` gives ours in this process."""
    return isinstance(sys.modules.get(NAME), _Module)


def track_from_device(cuda: Any) -> None:
    """On a GPU a trainer is tracked from the first call of ``torch.cuda.set_device`` on: the hosts choose the device in
    the thread that then builds the model. ``cuda`` is ``torch.cuda``; the function is its own again after that call."""
    original = cuda.set_device

    def set_device(*args: Any, **kwargs: Any) -> Any:
        done = original(*args, **kwargs)
        if cuda.set_device is set_device:
            cuda.set_device = original
            tms.track_whole_process()
        return done

    cuda.set_device = set_device


class _Module(ModuleType):
    """Ours. Where the whole process is to be tracked, that begins when its object is asked for, by a module that is
    about to build a model: so that nothing here imports PyTorch before its user does."""

    tracks = False

    def __getattr__(self, name: str) -> Any:
        if name != NAME:
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        if self.tracks:
            tms.track_whole_process()
        self.torch_memory_saver = tms.torch_memory_saver
        return tms.torch_memory_saver


def _module(tracks: bool) -> _Module:
    made = _Module(NAME, "april.memory in place of torch_memory_saver")
    made.tracks = tracks
    made.__file__ = str(build.stand_in_for_preload().parent / NAME / "__init__.py")
    made.__spec__ = importlib.machinery.ModuleSpec(NAME, None, origin=made.__file__)
    made.TorchMemorySaver = tms.TorchMemorySaver  # type: ignore[attr-defined]
    made.configure_subprocess = tms.configure_subprocess  # type: ignore[attr-defined]
    return made


def _rebind(before: ModuleType, theirs: object, ours: _Module) -> None:
    """Names of loaded modules that are bound to their module or object are bound to ours."""
    for module in list(sys.modules.values()):
        if module is before or not isinstance(module, ModuleType) or module is ours:
            continue
        for name, value in list(vars(module).items()):
            if value is before:
                setattr(module, name, ours)
            elif value is theirs:
                setattr(module, name, ours.torch_memory_saver)
    before.torch_memory_saver = ours.torch_memory_saver  # type: ignore[attr-defined]
