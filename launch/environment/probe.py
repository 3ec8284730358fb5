"""Says, as JSON, what the Python that runs this file has installed. It imports no package, so it takes 0.1 s.

Run by path in the user's own environment: ``python launch/environment/probe.py``. Imports nothing of ours.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata


def torch_build(torch: metadata.Distribution) -> str:
    """``cuda``, ``rocm`` or ``cpu`` by the version's local part, else by the constants in torch/version.py; ``unknown``
    when neither is there."""
    tag = torch.version.partition("+")[2]
    for prefix, build in (("rocm", "rocm"), ("cu", "cuda"), ("cpu", "cpu")):
        if tag.startswith(prefix):
            return build
    constants = torch.locate_file("torch/version.py")
    try:
        with open(str(constants), encoding="utf-8") as text:
            found = re.findall(r"^(cuda|hip)\b.*= *'", text.read(), re.MULTILINE)
    except FileNotFoundError:
        return "unknown"
    return "rocm" if "hip" in found else "cuda" if found else "cpu"


def report() -> dict[str, object]:
    """``python`` (version), ``prefix``, ``versions`` (by normalized name), ``april`` (the checkout's URL, if it is
    installed from one) and ``torch_build`` (empty without torch)."""
    found: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution)
    origin = found["april-rollout"].read_text("direct_url.json") if "april-rollout" in found else None
    return {
        "python": list(sys.version_info[:3]),
        "prefix": sys.prefix,
        "versions": {name: distribution.version for name, distribution in found.items()},
        "april": json.loads(origin)["url"] if origin else "",
        "torch_build": torch_build(found["torch"]) if "torch" in found else "",
    }


if __name__ == "__main__":
    print(json.dumps(report()))
