"""``april bench rollout``: the host's rollouts and april's on one real server, with the same response lengths.

``april bench sd`` is in ``speculation_command.py``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from april.errors import UsageError
from april.hosts.resolve import resolve
from april.launch import folders
from april.launch.arguments import UsageParser
from april.launch.bench import speculation_command, trace
from april.launch.bench.settings import MODES, Settings

MODELS = {"smollm2": 1024, "tiny": 960}
"""What the longest response is scaled to unless told: the tiny policy has 1024 positions."""
PROMPT_TOKENS = 32
"""No prompt of a benchmark is longer."""


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = UsageParser(prog="april bench", allow_abbrev=False, description="Measure on this machine.")
    commands = made.add_subparsers(dest="command", required=True, metavar="rollout|sd|crossing")
    speculation_command.add(commands)
    about = (__doc__ or "").splitlines()[0]
    rollout = commands.add_parser("rollout", help=about, description=about, allow_abbrev=False)
    default = Settings()
    rollout.add_argument("--modes", default=",".join(MODES), help=f"which (default: {','.join(MODES)})")
    rollout.add_argument(
        "--lengths",
        metavar="PMF.json",
        help="distribution of response lengths (default: quantiles of a reasoning model)",
    )
    for flag, kind, text in (
        ("--rounds", int, "measured rounds of each mode"),
        ("--warm-up", int, "rounds of each mode before them"),
        ("--batch", int, "groups that a round trains"),
        ("--samples", int, "responses of a group"),
        ("--over-sampling", float, "groups that the partial modes start per group that they train"),
        ("--concurrency", int, "responses that the server decodes at once; more wait in its queue"),
        ("--cap", int, "april's staleness cap in policy versions"),
        ("--seed", int, "of lengths, prompts and sampling"),
    ):
        value = getattr(default, flag.removeprefix("--").replace("-", "_"))
        rollout.add_argument(flag, type=kind, default=value, metavar="N", help=f"{text} (default: {value})")
    lengths = ", ".join(f"{tokens} for {model}" for model, tokens in MODELS.items())
    rollout.add_argument(
        "--max-len",
        type=int,
        metavar="N",
        help=f"tokens that the longest response of the distribution is scaled to (default: {lengths})",
    )
    rollout.add_argument("--model", default="smollm2", help=f"{' or '.join(MODELS)} (default: smollm2)")
    rollout.add_argument("--host", default="auto", help="auto, slime or miles")
    rollout.add_argument("--slime-dir", metavar="DIR", help="slime's source tree; default: $SLIME_DIR")
    rollout.add_argument("--out", metavar="DIR", help="where run and pictures go (default: runs/bench-<time>)")
    rollout.add_argument("--cache-dir", metavar="DIR", help="where models are kept (default: ~/.cache/april)")
    rollout.add_argument("--json", action="store_true", help="print the figures as one JSON object on the last line")
    return made


def run(argv: list[str]) -> int:
    """The whole benchmark; returns the exit code (128 + signal number after a signal).

    Raises:
        UsageError: for flags, files or folders that make no sense; AprilError when the run fails.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        flags = parser().parse_args(argv)
        commands = {"sd": speculation_command.run, "crossing": speculation_command.run_crossing, "rollout": _bench}
        return commands[flags.command](flags)
    except KeyboardInterrupt as signalled:
        print("april: interrupted; everything that the benchmark started has ended", file=sys.stderr)
        return 128 + (signalled.args[0] if signalled.args else signal.SIGINT)


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt(signum)


def _bench(flags: argparse.Namespace) -> int:
    begun = time.monotonic()
    if flags.model not in MODELS:
        raise UsageError(f"unknown model {flags.model!r}: use {' or '.join(MODELS)}")
    settings = settings_of(flags)
    lengths = trace.distribution(flags.lengths)
    count = settings.cycles * settings.started
    settings = dataclasses.replace(
        settings, lengths=tuple(lengths.draw(count * settings.samples, settings.max_len, settings.seed))
    )
    host = resolve(flags.host, flags.slime_dir, os.environ)
    out = folders.empty("--out", flags.out, f"runs/bench-{time.strftime('%Y%m%d-%H%M%S')}")

    from april.launch.bench import pictures, report, runs
    from april.launch.quickstart import cache, prepare

    machine = report.machine()
    model = prepare.MODELS[flags.model](cache.folder(flags.cache_dir, os.environ))
    check_fits(model, settings.max_len)
    job = runs.Job(
        host=host.name,
        slime_dir=flags.slime_dir,
        run_dir=out / "run",
        model=model,
        prompts=_prompts(out / "prompts.jsonl", count, settings.seed),
        settings=settings,
        settings_file=out / "settings.json",
    )
    settings.write(job.settings_file)
    result = report.read(runs.run(job), settings)
    machine["load_after"] = round(os.getloadavg()[0], 2)
    about = {"host": host.name, "model": flags.model, "lengths": lengths.name, "machine": machine}
    body = report.document(result, settings, {**about, "total_s": time.monotonic() - begun})
    (out / "report.json").write_text(json.dumps(body, indent=1) + "\n")
    print(report.table(result), file=sys.stderr)
    for path in pictures.draw(result, settings, out):
        print(f"april: {path}", file=sys.stderr)
    if flags.json:
        print(json.dumps(body))
    return 0


def settings_of(flags: argparse.Namespace) -> Settings:
    """The flags as settings, without the lengths. Raises UsageError for a value out of range."""
    names = ("rounds", "warm_up", "batch", "samples", "over_sampling", "concurrency", "cap", "seed")
    max_len = MODELS[flags.model] if flags.max_len is None else flags.max_len
    return Settings(
        modes=tuple(flags.modes.split(",")), max_len=max_len, **{name: getattr(flags, name) for name in names}
    )


def check_fits(model: Path, max_len: int) -> None:
    """Raises UsageError where the model has too few positions for the longest response and its prompt."""
    positions = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    if max_len + PROMPT_TOKENS > positions:
        raise UsageError(
            f"--max-len {max_len}: the model has {positions} positions, so at most {positions - PROMPT_TOKENS}"
        )


def _prompts(path: Path, count: int, seed: int) -> Path:
    rows = [{"prompt": prompt, "label": ""} for prompt in trace.prompts(count, seed)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
