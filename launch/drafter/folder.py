"""The weights of a Hugging Face folder, one at a time, as the layers that SGLang would multiply by.

SGLang joins some of them (q, k and v; gate and up). Outputs are quantized each for itself, so that changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from april.errors import UsageError

if TYPE_CHECKING:
    import torch

    from specrollout.draft_layers import FoundLayer

HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def layers(folder: Path, quantize_head: bool) -> Iterator[FoundLayer]:
    """Each matrix that multiplies, the head last.

    Raises:
        UsageError: where the folder has no configuration or no safetensors, or they cannot be read.
    """
    config = read_json(folder / "config.json")
    files = weight_files(folder)
    tied = bool(config.get("tie_word_embeddings", HEAD not in files))
    head = next((name for name in files if name.endswith(EMBEDDING)), None) if tied else HEAD
    for name in sorted((name for name in files if _multiplies(name)), key=_natural):
        tensor = _tensor(files[name], name)
        yield _layer(name.removesuffix(".weight"), tensor, _reason(name, tensor))
    if head in files:
        yield _layer("lm_head", _tensor(files[head], head), None if quantize_head else "the head stays as it is")


def weight_files(folder: Path) -> dict[str, Path]:
    """The file of each tensor; raises UsageError where there are none."""
    if (folder / INDEX).is_file():
        return {name: folder / file for name, file in read_json(folder / INDEX)["weight_map"].items()}
    if not (folder / SINGLE).is_file():
        raise UsageError(f"{folder} has neither {SINGLE} nor {INDEX}: give a Hugging Face folder with safetensors")
    return dict.fromkeys(_names(folder / SINGLE), folder / SINGLE)


def read_json(path: Path) -> dict[str, Any]:
    """An object; raises UsageError where there is none."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: give a Hugging Face folder, or smollm2 or tiny") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} is not a JSON object")
    return found


def _multiplies(name: str) -> bool:
    return name.endswith(".weight") and not name.endswith(EMBEDDING) and name != HEAD and "norm" not in name


def _reason(name: str, tensor: torch.Tensor) -> str | None:
    if ".experts." in name:
        return "experts stay as they are"
    from specrollout.kernels import DTYPES

    if tensor.ndim != 2 or tensor.dtype not in DTYPES:
        return f"no kernel takes {tensor.ndim} dimensions of {str(tensor.dtype).removeprefix('torch.')}"
    return None


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key: layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _names(path: Path) -> list[str]:
    with _opened(path) as opened:
        return list(opened.keys())


def _tensor(path: Path, name: str) -> torch.Tensor:
    with _opened(path) as opened:
        tensor: torch.Tensor = opened.get_tensor(name)
    return tensor


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path} cannot be read as safetensors: {error}") from None


def _layer(name: str, tensor: torch.Tensor, reason: str | None) -> FoundLayer:
    import torch

    from specrollout.draft_layers import FoundLayer

    module = torch.nn.Module()
    module.register_parameter("weight", torch.nn.Parameter(tensor, requires_grad=False))
    module.quant_method = None  # type: ignore[assignment]  # nothing multiplies here
    return FoundLayer(name, module, reason)
