"""``april drafter show``: what each layer of a model would draft with, its bytes and its error. Starts no server."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from april.launch.arguments import UsageParser

if TYPE_CHECKING:
    from specrollout.draft_weights import LayerReport

DRAFTERS = ("w4", "w8", "mixed", "auto")
GROUPS = (128, 64, 32)


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    made = UsageParser(prog="april drafter", allow_abbrev=False, description="The self-drafter (docs/drafter.md).")
    commands = made.add_subparsers(dest="command", required=True, metavar="show")
    show = commands.add_parser(
        "show",
        allow_abbrev=False,
        help="list what each layer of a model would draft with, its bytes and its error",
        description="Quantizes a model's layers as a server on this machine would, and lists for each what really "
        "multiplies while drafting, its bytes, and the relative error of its weight (Frobenius norm).",
    )
    show.add_argument("--model", required=True, help="a Hugging Face folder with safetensors, or smollm2 or tiny")
    show.add_argument("--drafter", choices=DRAFTERS, default="w4", help="default: w4; auto lists w8 and w4")
    show.add_argument("--group", type=int, choices=GROUPS, default=GROUPS[0], help="inputs that share a scale")
    show.add_argument("--no-head", action="store_true", help="leave the head as it is")
    show.add_argument("--cache-dir", help="where smollm2 and tiny are kept (default: ~/.cache/april)")
    show.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return made


def run(argv: list[str]) -> int:
    """Returns the exit code.

    Raises:
        UsageError: for a wrong flag or folder.
        AprilError: for weights that no drafter can be made from.
    """
    given = parser().parse_args(argv)
    folder = model_folder(given.model, given.cache_dir)
    found = {
        kind: [asdict(report) for report in reports(folder, kind, given.group, not given.no_head)]
        for kind in (("w8", "w4") if given.drafter == "auto" else (given.drafter,))
    }
    told = {kind: {"layers": rows, "total": total(rows)} for kind, rows in found.items()}
    if given.json:
        print(json.dumps({"model": str(folder), "drafter": given.drafter, "kinds": told}, indent=1))
    else:
        print("\n".join(line for kind, rows in found.items() for line in text(kind, rows)))
    return 0


def model_folder(model: str, cache_dir: str | None) -> Path:
    """The folder of a model's name, made where it is missing; or the folder itself."""
    from april.launch.quickstart import cache, prepare

    if model in prepare.MODELS:
        return prepare.MODELS[model](cache.folder(cache_dir, os.environ))
    return Path(model)


def reports(folder: Path, kind: str, group: int, quantize_head: bool) -> Iterator[LayerReport]:
    """Each layer's, one layer in memory at a time (a mixed plan reads them twice)."""
    from april.launch.drafter.folder import layers
    from specrollout import quantize
    from specrollout.draft_weights import DraftWeights

    plan: dict[str, str] = {}
    if kind == "mixed":
        errors, sizes = {}, {}
        for layer in layers(folder, quantize_head):
            if layer.reason is None:
                errors[layer.name] = quantize.expected_error(layer.weight, 4, group)
                sizes[layer.name] = layer.weight.numel()
        plan = quantize.mixed_plan(errors, sizes)
    for layer in layers(folder, quantize_head):
        weights = DraftWeights(
            kind, [layer], {layer.name: plan.get(layer.name, "w4" if kind == "mixed" else kind)}, group
        )
        weights.load({})
        yield from weights.report()


def total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all layers: how many draft, bytes as they are and as drafter, and the error of the weights taken together."""
    drafting = [row for row in rows if row["drafter_bytes"]]
    weighed = sum(row["source_bytes"] for row in drafting)
    return {
        "layers": len(rows),
        "drafting": len(drafting),
        "source_bytes": sum(row["source_bytes"] for row in rows),
        "drafter_bytes": sum(row["drafter_bytes"] for row in rows),
        "mean_error": sum(row["error"] * row["source_bytes"] for row in drafting) / weighed if weighed else 0.0,
    }


def text(kind: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """For people."""
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        shape = "x".join(map(str, row["shape"]))
        sizes = f"{row['source_bytes'] / 2**20:8.2f} -> {row['drafter_bytes'] / 2**20:7.2f} MiB"
        error = f"error {row['error']:.2%}" if row["drafter_bytes"] else ""
        yield f"{row['name']:{width}}  {shape:>12}  {sizes}  {error:12}  {row['method']}"
    summed = total(rows)
    yield (
        f"{kind}: {summed['drafting']} of {summed['layers']} layers draft with weights of their own, "
        f"{summed['source_bytes'] / 2**20:.1f} -> {summed['drafter_bytes'] / 2**20:.1f} MiB, "
        f"mean error {summed['mean_error']:.2%}"
    )
