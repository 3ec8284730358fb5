"""``april verify-sd``: whether what a speculating engine emits is what a plain one does."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from april.errors import UsageError
from april.launch.arguments import UsageParser

MODELS = ("tiny", "smollm2")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is tried. ``draws``: of each sampler case; ``gammas`` None: one draft length a case."""

    draws: int = 10_000_000
    gammas: tuple[int, ...] | None = (1, 2, 3, 4)
    prompts: int = 200
    longest: int = 512
    batches: tuple[int, ...] = (1, 8, 32)
    samples: int = 20_000
    requests: int = 1_000


FULL = Effort()
QUICK = Effort(1_000_000, None, prompts=24, longest=96, batches=(1, 8), samples=2_000, requests=150)


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = UsageParser(
        prog="april verify-sd",
        allow_abbrev=False,
        description="Shows that speculative decoding changes nothing but the speed (docs/verify.md). Exit code 0 where "
        "all is as it must be, else 1.",
    )
    made.add_argument("--quick", action="store_true", help="fewer draws, prompts and requests: minutes, not hours")
    made.add_argument("--offline-only", action="store_true", help="the sampler alone: no server is started")
    made.add_argument(
        "--model",
        default="tiny",
        help=f"of the servers: {' or '.join(MODELS)} (of the quick start), or a Hugging Face folder (default: tiny)",
    )
    made.add_argument("--cache-dir", metavar="DIR", help="where models are kept (default: ~/.cache/april)")
    made.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return made


def run(argv: list[str]) -> int:
    """Returns the exit code: 1 where something is not as it must be.

    Raises:
        UsageError: for a wrong flag or model; AprilError where a server fails or an answer is not whole.
    """
    flags = parser().parse_args(argv)
    effort = QUICK if flags.quick else FULL
    model = None if flags.offline_only else folder_of(flags.model, flags.cache_dir)
    found = offline(effort)
    if model is not None:
        served(model, effort, found)
    found["ok"] = verdict(found)
    print(json.dumps(found, indent=1) if flags.json else text(found))
    return 0 if found["ok"] else 1


def folder_of(model: str, cache_dir: str | None) -> Path:
    """The model's folder, made where it is one of ours. Raises UsageError where there is none."""
    if model in MODELS:
        from april.launch.quickstart import cache, prepare

        return prepare.MODELS[model](cache.folder(cache_dir, os.environ))
    folder = Path(model).expanduser().resolve()
    if not (folder / "config.json").is_file():
        raise UsageError(f"--model {model}: use {' or '.join(MODELS)}, or a folder with a config.json")
    return folder


def offline(effort: Effort) -> dict[str, Any]:
    """The sampler alone: its p-values, and which faults are caught."""
    from april.launch.verify import cases, faults, offline
    from specrollout import sampling

    p_values: dict[str, float] = {}
    for case in cases.cases(effort.gammas):
        values = offline.p_values(case, draws=effort.draws)
        p_values |= values
        _tell(f"{case.title}: p = {min(values.values()):.3g}")
    return {
        "sampler_p_values": p_values,
        "seeded_faults_caught": faults.caught(),
        "impossible_accepted": faults.accepts_impossible(sampling.verify),
    }


def served(model: Path, effort: Effort, found: dict[str, Any]) -> None:
    """Real servers: adds greedy cases, p-values of responses and leaked tokens to ``found``."""
    from april.launch.verify import greedy, leaks, sampled, server

    cases = greedy.run(model, effort.prompts, effort.longest, effort.batches, ("float32", "bfloat16"))
    for name, case in cases.items():
        _tell(f"{name}: {case['equal']} equal, {case['ties']} ties, {case['differ']} differ; tau {case['tau']}")
    with server.running(model, True, "--dtype", "float32") as engine:
        p_values = sampled.p_values(engine, server.vocabulary(model), effort.samples)
    for name, p_value in p_values.items():
        _tell(f"{name}: p = {p_value:.3g}")
    aborted = leaks.run(model, effort.requests)
    for name, case in aborted.items():
        _tell(f"{name}: {case}")
    found["sampler_p_values"] |= p_values
    found |= {
        "greedy_equal": all(case["ok"] for case in cases.values()),
        "greedy_cases": cases,
        "kv_leak_tokens": max((case["leaked_tokens"] for case in aborted.values()), key=abs),
        "mixed_requests": aborted,
    }


def verdict(found: dict[str, Any]) -> bool:
    """Whether all is as it must be; what was not tried does not count."""
    from april.launch.verify.statistics import rejected

    return (
        not rejected(found["sampler_p_values"])
        and all(found["seeded_faults_caught"].values())
        and not found["impossible_accepted"]
        and found.get("greedy_equal", True)
        and not found.get("kv_leak_tokens", 0)
        and all(case["cycles"] > 0 and not case["not_whole"] for case in found.get("mixed_requests", {}).values())
    )


def text(found: dict[str, Any]) -> str:
    """For people."""
    values, caught = found["sampler_p_values"], found["seeded_faults_caught"]
    name, least = min(values.items(), key=lambda item: item[1])
    missed = [fault for fault, seen in caught.items() if not seen]
    lines = [
        f"sampler: {len(values)} chi-square tests, least p-value {least:.3g} ({name})",
        f"seeded faults: {len(caught) - len(missed)} of {len(caught)} caught"
        + "".join(f"; MISSED: {m}" for m in missed),
    ]
    for name, case in found.get("greedy_cases", {}).items():
        told = f"greedy, {name}: {case['equal']} equal, {case['ties']} differ at a tie, {case['differ']} differ"
        lines += [told, *(f"  {example}" for example in case["examples"])]
    for name, case in found.get("mixed_requests", {}).items():
        told = f"mixed requests, {name}: {case['not_whole']} answers are not whole"
        lines += [told, *(f"  {example}" for example in case["examples"])]
    if "kv_leak_tokens" in found:
        lines.append(f"KV cache: {found['kv_leak_tokens']} tokens in use after mixed requests with aborts")
    return "\n".join([*lines, "ok" if found["ok"] else "NOT as it must be"])


def _tell(line: str) -> None:
    print(f"april: {line}", file=sys.stderr, flush=True)
