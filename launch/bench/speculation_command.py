"""The command ``april bench sd``: flags, models, and what it prints."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from april.errors import UsageError
from april.launch import folders
from specrollout.settings import DRAFTERS, LONGEST, Settings

MODELS = ("smollm2", "synthetic")
ABOUT = (
    "Plain decoding and speculation, interleaved in one real server: tokens per second, acceptance, costs of a step."
)
CROSSING = "A rollout whose batch crosses the boundary both ways: the toggle against an oracle, draft lengths by rule."
COLUMNS = ("ar_tok_s", "speedup", "toggle_speedup", "toggle_sd_share", "tau", "alpha", "gamma", "tq_tp", "tv_tp")


def add(commands: Any) -> None:
    """Add the subcommand."""
    sd = commands.add_parser("sd", help=ABOUT, description=ABOUT, allow_abbrev=False)
    sd.add_argument("--models", default=",".join(MODELS), help=f"which of {', '.join(MODELS)} (default: all)")
    sd.add_argument("--batches", default="1,2,4,8,16", metavar="B,...", help="(default: 1,2,4,8,16)")
    sd.add_argument("--repeats", type=int, default=3, metavar="N", help="bursts of each mode and batch (default: 3)")
    sd.add_argument("--tokens", type=int, default=96, metavar="N", help="of a response (default: 96)")
    sd.add_argument("--prompt", type=int, default=64, metavar="N", help="tokens of a prompt (default: 64)")
    sd.add_argument("--temperature", type=float, default=1.0, help="(default: 1.0)")
    sd.add_argument("--gamma", default="auto", help="draft length, or auto: by the rule of a run (default: auto)")
    sd.add_argument("--drafter", default="w4", choices=DRAFTERS, help="(default: w4)")
    sd.add_argument("--no-overhead", action="store_true", help="leave out the second server, without the algorithm")
    sd.add_argument("--out", metavar="DIR", help="where the report goes (default: runs/bench-sd-<time>)")
    sd.add_argument("--cache-dir", metavar="DIR", help="where models are kept (default: ~/.cache/april)")
    sd.add_argument("--json", action="store_true", help="print the figures as one JSON object on the last line")

    _add_crossing(commands)


def _add_crossing(commands: Any) -> None:
    crossing = commands.add_parser("crossing", help=CROSSING, description=CROSSING, allow_abbrev=False)
    crossing.add_argument("--model", default="smollm2", choices=MODELS, help="(default: smollm2)")
    crossing.add_argument("--requests", type=int, default=24, metavar="N", help="of a wave (default: 24)")
    crossing.add_argument("--waves", type=int, default=3, metavar="N", help="(default: 3)")
    crossing.add_argument("--median", type=int, default=40, metavar="N", help="tokens of a response (default: 40)")
    crossing.add_argument("--longest", type=int, default=240, metavar="N", help="response (default: 240)")
    crossing.add_argument("--repeats", type=int, default=3, metavar="N", help="of each way (default: 3)")
    crossing.add_argument("--gamma", default="optimal", help="draft length, or the rule for it (default: optimal)")
    crossing.add_argument("--calibration", metavar="FILE", help="of april calibrate fit (default: learned)")
    crossing.add_argument("--drafter", default="w4", choices=DRAFTERS, help="(default: w4)")
    crossing.add_argument("--out", metavar="DIR", help="where the report goes (default: runs/bench-crossing-<time>)")
    crossing.add_argument("--cache-dir", metavar="DIR", help="where models are kept (default: ~/.cache/april)")
    crossing.add_argument("--json", action="store_true", help="print the figures as one JSON object on the last line")


def run_crossing(flags: argparse.Namespace) -> int:
    """The toggle and the draft lengths on waves of requests.

    Raises:
        UsageError: for flags that make no sense; AprilError when the server fails.
    """
    from april.launch.bench import crossing, report

    for name in ("requests", "waves", "median", "longest", "repeats"):
        if getattr(flags, name) < 1:
            raise UsageError(f"--{name} is {getattr(flags, name)}: it must be at least 1")
    if flags.calibration and not Path(flags.calibration).is_file():
        raise UsageError(f"--calibration {flags.calibration}: there is no such file")
    waves = crossing.Waves(flags.requests, flags.waves, flags.median, longest=flags.longest)
    out = folders.empty("--out", flags.out, f"runs/bench-crossing-{time.strftime('%Y%m%d-%H%M%S')}")
    gamma = int(flags.gamma) if flags.gamma.isdigit() else flags.gamma
    settings = Settings(
        drafter=flags.drafter,
        gamma=gamma,
        calibration=flags.calibration,
        decisions=str((out / "decisions.jsonl").resolve()),
    )
    slots = 2 * flags.requests * (waves.prompt + flags.longest + 64)
    server_flags = ("--dtype", "bfloat16", "--max-total-tokens", str(slots))
    machine = report.machine()
    body = crossing.measure(model(flags.model, flags.cache_dir), waves, settings, flags.repeats, server_flags)
    body |= {"model": flags.model, "machine": {**machine, "load_after": round(os.getloadavg()[0], 2)}}
    trace = {"name": f"{flags.model} {flags.drafter}", **body.pop("acceptance")}
    (out / "acceptance.json").write_text(json.dumps(trace) + "\n")
    (out / "report.json").write_text(json.dumps(body, indent=1) + "\n")
    for name, ratio in body["over_plain"].items():
        print(f"{name:>10}: {body['tokens_per_s'][name]:.1f} tok/s, x{ratio:.2f}", file=sys.stderr)
    regret, switches = 100 * body["toggle_regret"], body["toggle_switches"]
    print(f"april: regret of the toggle {regret:.1f} %, switches {switches}", file=sys.stderr)
    if flags.json:
        print(json.dumps(body))
    return 0


def run(flags: argparse.Namespace) -> int:
    """The whole benchmark.

    Raises:
        UsageError: for flags that make no sense; AprilError when a server fails.
    """
    from april.launch.bench import report, speculation

    plan = _plan(flags)
    names = [name for name in flags.models.split(",") if name]
    if unknown := sorted(set(names) - set(MODELS)):
        raise UsageError(f"--models {', '.join(unknown)}: use {', '.join(MODELS)}")
    if not names:
        raise UsageError(f"--models is empty: use {', '.join(MODELS)}")
    out = folders.empty("--out", flags.out, f"runs/bench-sd-{time.strftime('%Y%m%d-%H%M%S')}")
    settings = Settings(drafter=flags.drafter, decisions=str(out / "decisions.jsonl"))
    models = {name: model(name, flags.cache_dir) for name in names}
    body: dict[str, Any] = {"models": {}, "machine": report.machine(), "drafter": flags.drafter}
    for name, folder in models.items():
        print(f"april: {name}: {folder}", file=sys.stderr)
        server_flags = ("--dtype", "bfloat16", "--max-total-tokens", str(_slots(plan)))
        body["models"][name] = {"batch": speculation.measure(folder, plan, settings, server_flags)}
        if not flags.no_overhead:
            body["models"][name] |= speculation.off_overhead(folder, plan, Settings(), server_flags)
    overheads = [model["off_overhead"] for model in body["models"].values() if "off_overhead" in model]
    body["off_overhead"] = max(overheads) if overheads else None
    body["machine"]["load_after"] = round(os.getloadavg()[0], 2)
    (out / "report.json").write_text(json.dumps(body, indent=1) + "\n")
    print(_table(body), file=sys.stderr)
    if flags.json:
        print(json.dumps(body))
    return 0


def _plan(flags: argparse.Namespace) -> Any:
    from april.launch.bench.speculation import Plan

    batches = [int(text) if text.isdigit() else 0 for text in flags.batches.split(",")]
    if not batches or min(batches) < 1:
        raise UsageError(f"--batches {flags.batches}: whole numbers from 1, separated by commas, are expected")
    for name in ("repeats", "tokens", "prompt"):
        if getattr(flags, name) < 1:
            raise UsageError(f"--{name} is {getattr(flags, name)}: it must be at least 1")
    if flags.temperature < 0:
        raise UsageError(f"--temperature is {flags.temperature}: it must be 0 or more")
    gamma: int | str = int(flags.gamma) if flags.gamma.isdigit() else flags.gamma
    if gamma != "auto" and not (isinstance(gamma, int) and 1 <= gamma <= min(LONGEST, Settings().longest)):
        raise UsageError(f"--gamma is {flags.gamma}: it must be auto, or from 1 to {Settings().longest}")
    return Plan(batches, flags.repeats, flags.prompt, flags.tokens, flags.temperature, gamma)


def _slots(plan: Any) -> int:
    """KV slots for the largest batch, with what drafts reserve."""
    return int(max(plan.batches) * (plan.prompt + plan.tokens + 64) + 1024)


def model(name: str, cache_dir: str | None) -> Path:
    """Its folder, made where it is missing."""
    from april.launch.bench import synthetic
    from april.launch.quickstart import cache, prepare

    folder = cache.folder(cache_dir, os.environ)
    return synthetic.make(folder) if name == "synthetic" else prepare.MODELS[name](folder)


def _table(body: dict[str, Any]) -> str:
    lines = []
    for name, figures in body["models"].items():
        lines.append(" ".join(f"{title:>15}" for title in (name, *COLUMNS)))
        for batch, row in figures["batch"].items():
            lines.append(" ".join([f"{batch:>15}", *(f"{row[column]:>15.3f}" for column in COLUMNS)]))
        if "off_overhead" in figures:
            low, high = figures["off_overhead_quartiles"]
            lines.append(
                f"off: {100 * figures['off_overhead']:+.2f} % (quartiles {100 * low:+.2f}, {100 * high:+.2f}); "
                f"two servers without the algorithm differ by {100 * figures['stock_difference']:+.2f} %"
            )
    return "\n".join(lines)
