"""A launch as text: what ``--dry-run`` prints and what a run stores."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from april.launch.run.resolve import Launch

RESOLVED, COMMAND, ENVIRONMENT = "resolved.yaml", "command.sh", "environment.json"


def document(launch: Launch) -> dict[str, Any]:
    """The resolved configuration."""
    return {
        "preset": launch.name,
        "model": launch.model.name,
        "data": launch.data.name,
        "algorithm": launch.algorithm.name,
        "hardware": launch.hardware.name,
        "mode": launch.mode.name,
        "nodes": launch.nodes,
        "async": launch.asynchronous,
        "flags": dict(launch.flags),
        "environment": dict(launch.environment),
        "presets": list(launch.files),
    }


def yaml_text(body: Mapping[str, Any]) -> str:
    """As YAML, in the order of the mapping."""
    import yaml

    return str(yaml.safe_dump(dict(body), sort_keys=False, width=120, allow_unicode=True))


def command_text(words: Sequence[str]) -> str:
    """A command on lines: one flag each."""
    return " \\\n  ".join(shlex.join(line) for line in _lines(words))


def _lines(words: Sequence[str]) -> Iterator[list[str]]:
    line: list[str] = []
    for word in words:
        if word.startswith("--") and line:
            yield line
            line = []
        line.append(word)
    yield line


def script(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """The run as a shell script, which starts it again as it was."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    return "\n".join(["#!/usr/bin/env bash", "set -euo pipefail", *exports, f"exec {command_text(words)}", ""])


def dry_run(launch: Launch, words: Sequence[str], job: str | None) -> str:
    """All that a run would be, one part after the other under a title."""
    body = document(launch)
    del body["environment"]
    parts = {
        "resolved configuration": yaml_text(body),
        "environment": "".join(f"{name}={shlex.quote(value)}\n" for name, value in launch.environment.items()),
        "command": command_text(words) + "\n",
        **({"job": job} if job else {}),
    }
    return "\n".join(f"# {title}\n{text}" for title, text in parts.items())


def store(launch: Launch, words: Sequence[str], environment: Mapping[str, str], out: Path) -> None:
    """Write the configuration, the command and the environment into the run's folder."""
    (out / RESOLVED).write_text(yaml_text(document(launch)), encoding="utf-8")
    (out / COMMAND).write_text(script(words, environment), encoding="utf-8")
    (out / COMMAND).chmod(0o755)
    (out / ENVIRONMENT).write_text(json.dumps(dict(environment), indent=1) + "\n", encoding="utf-8")
