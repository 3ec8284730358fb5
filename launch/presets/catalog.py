"""Finds presets by name: the user's folder first, then ours; a run MODEL-DATA needs no file."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from april import configs
from april.errors import UsageError
from april.launch.presets import files
from april.launch.presets.files import Preset

OURS = Path(configs.__file__).with_name("presets")
VARIABLE = "APRIL_PRESETS"
"""Environment variable: a folder of the user's own presets, laid out as ours."""
KINDS = ("runs", "models", "data", "algorithms", "hardware")
DEFAULTS: Mapping[str, str] = {"algorithm": "grpo", "hardware": "h100x8"}
"""Of a run that has no file, or whose file does not say."""


class Catalog:
    """The presets of some folders, each file read once."""

    def __init__(self, folders: tuple[Path, ...] = (OURS,)) -> None:
        """``folders``: those with precedence first."""
        self._folders = folders
        self._read: dict[tuple[str, str], tuple[dict[str, Any], tuple[str, ...]]] = {}
        self._files: dict[Path, dict[str, Any]] = {}

    @staticmethod
    def of_environment(environ: Mapping[str, str]) -> Catalog:
        """The user's folder and ours.

        Raises:
            UsageError: when the folder that the environment names is none.
        """
        given = environ.get(VARIABLE)
        if given and not Path(given).is_dir():
            raise UsageError(f"{VARIABLE} {given}: no such folder; give one with runs/, models/, data/, ...")
        return Catalog((*((Path(given),) if given else ()), OURS))

    def base(self) -> Preset:
        """What every run has."""
        return files.preset("base", "base", *self._chain("base", "base", ()))

    def names(self, kind: str) -> list[str]:
        """The presets of a kind that can be used as they are, sorted."""
        return sorted(name for name in self._all(kind) if not self._own(kind, name).get("abstract"))

    def get(self, kind: str, name: str) -> Preset:
        """A preset with all that it extends.

        Raises:
            UsageError: for an unknown name (with those that are known) or a faulty file.
        """
        body, paths = self._chain(kind, name, ())
        if body.get("abstract"):
            raise UsageError(f"preset {name} is there to be extended; use {', '.join(self.names(kind))}")
        return files.preset(kind, name, body, paths)

    def run(self, name: str) -> Preset:
        """A run by its name, by a path to a YAML file, or as MODEL-DATA."""
        return self.get("runs", name)

    def pair(self, name: str) -> tuple[str, str] | None:
        """Model and data of a name MODEL-DATA, or None."""
        data = self.names("data")
        for model in self.names("models"):
            if name.startswith(model + "-") and name[len(model) + 1 :] in data:
                return model, name[len(model) + 1 :]
        return None

    def _all(self, kind: str) -> set[str]:
        return {path.stem for folder in self._folders for path in (folder / kind).glob("*.yaml")}

    def _own(self, kind: str, name: str) -> dict[str, Any]:
        """The mapping in the file of a name."""
        path = self._path(kind, name)
        assert path is not None, name
        if path not in self._files:
            self._files[path] = files.read(path, kind)
        return self._files[path]

    def _chain(self, kind: str, name: str, below: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The merged mapping of a name and the files that it came from."""
        if name in below:
            raise UsageError(f"preset {name} extends itself: {' -> '.join([*below, name])}")
        if (kind, name) not in self._read:
            path = self._path(kind, name)
            if path is None:
                self._read[kind, name] = self._without_file(kind, name)
            else:
                body = dict(self._own(kind, name))
                paths: tuple[str, ...] = (str(path),)
                if parent := body.pop("extends", None):
                    # What is abstract is the file, not what is made of it.
                    inherited, others = self._chain(kind, parent, (*below, name))
                    body = files.merged({**inherited, "abstract": False}, body)
                    paths += others
                self._read[kind, name] = (body, paths)
        return self._read[kind, name]

    def _path(self, kind: str, name: str) -> Path | None:
        if kind == "runs" and name.endswith((".yaml", ".yml")):
            return Path(name)
        below = "" if kind == "base" else kind
        return next((path for folder in self._folders if (path := folder / below / f"{name}.yaml").is_file()), None)

    def _without_file(self, kind: str, name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
        pair = self.pair(name) if kind == "runs" else None
        if pair is None:
            raise UsageError(self._unknown(kind, name))
        model, data = pair
        body = {"model": model, "data": data, "summary": f"{model} on {data}"}
        return body, (f"{model} and {data}",)

    def _unknown(self, kind: str, name: str) -> str:
        known = self.names(kind)
        if kind == "runs":
            pairs = itertools.product(self.names("models"), self.names("data"))
            known = sorted({*known, *map("-".join, pairs)})
        near = difflib.get_close_matches(name, known, n=1)
        what = {"runs": "preset", "models": "model", "algorithms": "algorithm"}.get(kind, kind)
        hint = f"did you mean {near[0]}?" if near else ""
        if kind == "runs":
            models, data = ", ".join(self.names("models")), ", ".join(self.names("data"))
            listed = f"use MODEL-DATA of the models {models} and the data {data}, or a path to a .yaml file"
            return f"unknown preset {name!r}: {hint or listed}"
        return f"unknown {what} {name!r}: {hint + ' ' if hint else ''}use {', '.join(known)}"
