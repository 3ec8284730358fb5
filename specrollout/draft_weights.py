"""One kind of drafter weights for all layers of a model: memory, contents, sums, and the methods that use them.

The memory is taken once and refilled in place, layer by layer, so that a refresh needs no more than one layer's worth.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from april.errors import AprilError
from specrollout import checksum, kernels, quantize
from specrollout.draft_layers import HEAD, FoundLayer
from specrollout.kernels import between


class DrafterError(AprilError):
    """The drafter cannot be made from these weights."""


@dataclass(frozen=True, slots=True)
class LayerReport:
    """What a layer really drafts with. The error is that of the weight: Frobenius norm, relative."""

    name: str
    method: str
    shape: tuple[int, ...]
    source_bytes: int
    drafter_bytes: int
    error: float


class DraftMethod:
    """Stands where a ``quant_method`` was; all but ``apply`` is as it was there (a tied head embeds, too)."""

    def __init__(self, original: Any, multiply: kernels.Multiply) -> None:
        self._original = original
        self._multiply = multiply

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As SGLang calls it."""
        return self._multiply(x, bias)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)


class CollectMethod(DraftMethod):
    """Multiplies as before and looks at the input."""

    def __init__(self, original: Any, activations: quantize.Activations) -> None:
        super().__init__(original, original.apply)
        self._activations = activations

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As SGLang calls it."""
        self._activations.add(x)
        result: torch.Tensor = self._original.apply(layer, x, bias)
        return result


Swap = tuple[torch.nn.Module, str, Any]
"""A module, the name of an attribute of its own, and what to put there."""


class Swapped:
    """Puts other objects into modules, and the very same ones back. Does not nest."""

    def __init__(self, swaps: Sequence[Swap]) -> None:
        self._swaps = [(module.__dict__, name, module.__dict__[name], other) for module, name, other in swaps]
        self.inside = False

    def __enter__(self) -> None:
        assert not self.inside, "a drafter drafts already"
        self.inside = True
        # Not by setattr: a module's takes ten times longer, and this happens at every draft.
        for attributes, name, _, other in self._swaps:
            attributes[name] = other

    def __exit__(self, *error: object) -> None:
        self.inside = False
        for attributes, name, original, _ in self._swaps:
            attributes[name] = original


class DraftWeights:
    """The weights of one kind; ``plan`` has ``w4`` or ``w8`` for each layer's name.

    ``modules`` are all of the model: on a CPU those between the layers draft with native code, too.
    """

    def __init__(
        self,
        kind: str,
        layers: Sequence[FoundLayer],
        plan: Mapping[str, str],
        group: int,
        modules: Sequence[torch.nn.Module] = (),
    ) -> None:
        self.kind = kind
        self.replaced = 0
        self._modules = modules
        self.fresh = False
        self.sources: list[int] = []
        self.contents: list[int] = []
        self._all = layers
        self._reasons = {layer.name: layer.reason for layer in layers if layer.reason}
        self._weights: dict[str, kernels.DraftWeight] = {}
        for layer in layers:
            if layer.reason is None:
                try:
                    self._weights[layer.name] = kernels.make(plan[layer.name], layer.weight, group)
                except kernels.Unsupported as unsupported:
                    self._reasons[layer.name] = str(unsupported)
        self._layers = [layer for layer in layers if layer.name in self._weights]
        self.swapped = Swapped([])

    @property
    def reason(self) -> str | None:
        """Why there is nothing to draft with; None where there is."""
        if self._layers:
            return None
        return "; ".join(sorted(set(self._reasons.values()))) or "the model has no linear layers"

    @property
    def bytes(self) -> int:
        """The memory of all layers."""
        return sum(map(kernels.nbytes, self._weights.values()))

    @torch.no_grad()
    def load(self, input_scales: Mapping[str, torch.Tensor]) -> None:
        """Quantize the layers as they are now.

        Raises:
            DrafterError: naming the layer whose weight is not finite or has another shape or type now.
        """
        assert not self.swapped.inside, "the drafter drafts"
        self.fresh = False
        for layer in self._layers:
            try:
                self._weights[layer.name].load(layer.weight, input_scales.get(layer.name))
            except ValueError as error:
                raise DrafterError(f"{layer.name}: {error}: no drafter can be made from it") from None
        self.sources, self.contents = self._source_sums(), self._content_sums()
        # The methods are looked up again each time: whoever put others there since then gets those back.
        swaps: list[Swap] = [(layer.module, "quant_method", self._method(layer)) for layer in self._layers]
        others = list(between.replacements(self._modules)) if self._layers else []
        swaps += [(module, between.PLACE, forward) for module, forward in others]
        self.swapped, self.replaced = Swapped(swaps), len(others)
        self.fresh = True

    def stale(self) -> str | None:
        """What is wrong with weights that are held to be fresh; None where nothing is."""
        for now, then, what in (
            (self._source_sums(), self.sources, "is stale: a weight update did not mark it"),
            (self._content_sums(), self.contents, "lost its contents: its memory was released or overwritten"),
        ):
            changed = [layer.name for layer, a, b in zip(self._layers, now, then, strict=True) if a != b]
            if changed:
                which = f"{len(changed)} of {len(now)} layers differ, the first is {changed[0]}"
                return f"the {self.kind} drafter {what} ({which})"
        return None

    @torch.no_grad()
    def report(self) -> list[LayerReport]:
        """Each layer as it drafts, from the memory that it drafts with; those that do not draft too."""
        return [self._report(layer) for layer in self._all]

    @torch.no_grad()
    def seconds(self, batch: int, drafted: bool) -> float:
        """Time of a batch through a quarter of the layers and the head, as drafter or as they are."""
        some = [layer for layer in self._layers if layer.name != HEAD][::4] + self._layers[-1:]
        inputs = [torch.ones(batch, layer.weight.shape[1], dtype=layer.weight.dtype) for layer in some]
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            for layer, x in zip(some, inputs, strict=True):
                if drafted:
                    self._weights[layer.name].multiply(x, None)
                else:
                    torch.nn.functional.linear(x, layer.weight)
            best = min(best, time.perf_counter() - start)
        return best

    def _method(self, layer: FoundLayer) -> DraftMethod:
        return DraftMethod(layer.module.quant_method, self._weights[layer.name].multiply)

    def _report(self, layer: FoundLayer) -> LayerReport:
        if (weight := self._weights.get(layer.name)) is None:
            own = list(layer.module.parameters(recurse=False))
            shape = tuple(own[0].shape) if own else ()
            size = sum(part.numel() * part.element_size() for part in own)
            return LayerReport(layer.name, f"as it is: {self._reasons[layer.name]}", shape, size, 0, 0.0)
        source = layer.weight
        error = quantize.relative_error(source, weight.dequantized())
        size = source.numel() * source.element_size()
        return LayerReport(layer.name, weight.method, tuple(source.shape), size, kernels.nbytes(weight), error)

    def _source_sums(self) -> list[int]:
        return checksum.sums([layer.weight for layer in self._layers])

    def _content_sums(self) -> list[int]:
        buffers = [weight.buffers() for weight in self._weights.values()]
        values = iter(checksum.sums([buffer for some in buffers for buffer in some]))
        return [sum(next(values) for _ in some) for some in buffers]
