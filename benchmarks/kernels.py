"""How long a linear takes: bfloat16 as SGLang multiplies on a CPU, and the drafter's kernels at 4 and 8 bits.

    python benchmarks/kernels.py [--threads 1 2] [--shapes 576x1536 2048x5632] [--rows 1 2 4 8 16] [--aten] [--json]

Shapes are KxN, inputs by outputs. As many copies as fill four times the third-level cache are multiplied in turn, as a
decoder's layers are, so that weights come from memory. The least of several passes counts: on a shared machine it is
the one that nobody disturbed. Also how long quantizing takes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from specrollout import kernels
from specrollout.kernels import Unsupported
from specrollout.kernels.aten import AtenW4, AtenW8

SHAPES = ["576x1536", "2048x2048", "2048x5632", "576x49152"]
COLD_BYTES = 128 * 2**20
PASSES = 15

Product = Callable[[torch.Tensor], torch.Tensor]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--aten", action="store_true", help="PyTorch's own low-bit kernels, too")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = []
    for threads in given.threads:
        torch.set_num_threads(threads)
        for shape in given.shapes:
            inputs, outputs = map(int, shape.split("x"))
            found += measured(inputs, outputs, given.rows, threads, given.aten)
    print(json.dumps(found, indent=1) if given.json else table(found))


def measured(inputs: int, outputs: int, rows: list[int], threads: int, aten: bool) -> list[dict[str, Any]]:
    """One record for each kernel: microseconds by rows, and nanoseconds to quantize a weight."""
    copies = max(1, COLD_BYTES // (2 * inputs * outputs))
    sources = [(torch.randn(outputs, inputs) * 0.02).bfloat16() for _ in range(copies)]
    found = [_record("bf16", [_plain(source) for source in sources], inputs, rows)]
    makers: dict[str, Callable[[torch.Tensor], kernels.DraftWeight]] = {
        "w4": lambda source: kernels.make("w4", source, 128),
        "w8": lambda source: kernels.make("w8", source, 128),
    }
    if aten:
        makers |= {"w4 aten": lambda source: AtenW4(source, 128), "w8 aten": AtenW8}
    for name, make in makers.items():
        try:
            weights = [make(source) for source in sources]
        except Unsupported:
            continue
        for _ in range(2):
            start = time.perf_counter()
            for weight, source in zip(weights, sources, strict=True):
                weight.load(source)
            seconds = time.perf_counter() - start
        record = _record(name, [_drafting(weight) for weight in weights], inputs, rows)
        found.append({**record, "quantize_ns": 1e9 * seconds / (copies * inputs * outputs)})
    return [{"shape": f"{inputs}x{outputs}", "threads": threads, **record} for record in found]


def _plain(source: torch.Tensor) -> Product:
    return lambda x: torch.nn.functional.linear(x, source)


def _drafting(weight: kernels.DraftWeight) -> Product:
    return lambda x: weight.multiply(x, None)


def _record(name: str, products: list[Product], inputs: int, rows: list[int]) -> dict[str, Any]:
    """Microseconds of one product, by rows."""
    times: dict[int, float] = {}
    for count in rows:
        x, best = torch.randn(count, inputs).bfloat16(), float("inf")
        for _ in range(PASSES):
            start = time.perf_counter()
            for product in products:
                product(x)
            best = min(best, time.perf_counter() - start)
        times[count] = 1e6 * best / len(products)
    return {"kernel": name, "us": times}


def table(found: list[dict[str, Any]]) -> str:
    """For people, in Markdown."""
    rows = list(found[0]["us"])
    lines = ["| KxN | threads | kernel | " + " | ".join(f"M={count}" for count in rows) + " | quantize ns |"]
    lines.append("| --- " * (len(rows) + 4) + "|")
    for record in found:
        cells = " | ".join(f"{record['us'][count]:.0f}" for count in rows)
        quantizing = f"{record['quantize_ns']:.2f}" if "quantize_ns" in record else ""
        lines.append(f"| {record['shape']} | {record['threads']} | {record['kernel']} | {cells} | {quantizing} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
