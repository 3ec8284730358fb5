"""Misspelt flags, found in the sources of the host, Megatron and SGLang without importing them.

The hosts' parsers take many seconds to import. Here a flag counts as known when its name stands anywhere in their
files, as text or as a field that a flag is made from; so nothing that they know is refused, and most typing errors are
found at once. The run's own parser finds the rest.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from april.errors import UsageError
from april.hosts import Host
from april.launch.run import rules
from april.launch.train import command

WORD = re.compile(r"(?:--)?[A-Za-z][A-Za-z0-9_-]+")
FILES = {
    "slime": ("utils/arguments.py", "backends/*/arguments.py", "ray/**/arguments.py"),
    "miles": ("utils/arguments.py", "backends/*/arguments.py", "backends/*/*/arguments.py"),
    "megatron": ("training/*.py", "training/config/*.py", "core/transformer/transformer_config.py", "core/*.py"),
    "sglang": ("srt/server_args.py",),
    "sglang_router": ("*.py",),
}
"""Where flags are declared, below each package."""
NEGATIONS = ("no-", "disable-", "use-", "enable-")
"""What parsers put before a field's name to make its flag."""


def check(flags: Iterable[str], host: Host) -> None:
    """Refuse flags that no parser of the run can know.

    Raises:
        UsageError: naming the first, with the nearest known one.
    """
    words = _words(host)
    for flag in flags:
        if not _known(flag, words):
            prefix = "--sglang-" if flag.startswith("--sglang-") else "--"
            named = sorted({_flag(word, prefix) for word in words})
            near = difflib.get_close_matches(flag, named, n=1)
            raise UsageError(f"unknown flag {flag}" + (f" (did you mean {near[0]}?)" if near else ""))


def _known(flag: str, words: set[str]) -> bool:
    name = flag.removeprefix("--").replace("-", "_")
    stems = {name, name.removeprefix("sglang_"), name.removeprefix("router_")}
    for negation in NEGATIONS:
        stems |= {stem.removeprefix(negation.replace("-", "_")) for stem in set(stems)}
    return not words.isdisjoint(stems)


def _flag(word: str, prefix: str) -> str:
    return prefix + word.replace("_", "-")


def _words(host: Host) -> set[str]:
    """Every word of the sources, and the flags of ours, with underscores."""
    found = {action.removeprefix("--").replace("-", "_") for action in _ours()}
    for path in _sources(host):
        text = path.read_text(encoding="utf-8", errors="replace")
        found |= {word.removeprefix("--").replace("-", "_") for word in WORD.findall(text)}
    return found


def _ours() -> Iterator[str]:
    for parser in (rules.our_parser(), command.parser()):
        yield from parser._option_string_actions


def _sources(host: Host) -> Iterator[Path]:
    for package, patterns in FILES.items():
        for folder in _folders(package, host):
            for pattern in patterns:
                yield from folder.glob(pattern)


def _folders(package: str, host: Host) -> list[Path]:
    """The package as the run would import it."""
    given = [folder for path in host.paths() if (folder := path / package).is_dir()]
    spec = None if given else importlib.util.find_spec(package)
    return given or [Path(place) for place in (spec.submodule_search_locations or () if spec else ())]
