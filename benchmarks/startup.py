"""What the overlay adds to the start of a process, medians over fresh processes.

``python benchmarks/startup.py [--runs 20] [--json]``. A Ray worker has imported Ray before the hook is called; SGLang's
processes have looked for plugins.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

PLUGIN = """from importlib.metadata import entry_points
found = [point for point in entry_points(group="sglang.srt.plugins") if point.name == "april"]
"""
CASES = {
    "SGLang's plugin, outside a run": (PLUGIN, "found[0].load()()", {}),
    "armed in a Ray worker": ("import ray", "from april.patches import boot; boot.install()", {"APRIL_HOST": "slime"}),
}
TIMED = "import time\n{}\nstart = time.perf_counter()\n{}\nprint(1000 * (time.perf_counter() - start))\n"


def milliseconds(before: str, code: str, extra: dict[str, str]) -> float:
    """What ``code`` takes in one fresh process, after ``before``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("APRIL_")}
    environment |= {"APRIL_DEVICE": "cuda", **extra}
    command = [sys.executable, "-c", TIMED.format(before, code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the overlay adds to the start of a process.")
    parser.add_argument("--runs", type=int, default=20, help="processes of each kind (default: 20)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {}
    for name, (before, code, extra) in CASES.items():
        found[name] = round(statistics.median(milliseconds(before, code, extra) for _ in range(given.runs)), 1)
    print(json.dumps(found) if given.json else "\n".join(f"{name:32} {spent:6} ms" for name, spent in found.items()))


if __name__ == "__main__":
    main()
