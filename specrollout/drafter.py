"""The drafter that is the policy itself: its own modules, with other weights behind their linears while they draft.

A linear of SGLang multiplies through its ``quant_method``. Inside :meth:`SelfDrafter.drafting` that attribute is another
object, which multiplies by the quantized weight; outside, it is the very object that was there, so that a server that
does not draft pays nothing. Embeddings, norms and KV cache are shared. The drafter has neither parameters nor buffers,
so that state dicts, checksums and weight updates of the model do not see it.

After an update the weights are quantized again, once, at the next draft. A drafter that was not told of an update is
found by :meth:`SelfDrafter.check`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from april.errors import AprilError
from specrollout import checksum, draft_layers, kernels, quantize
from specrollout.kinds import KINDS, KindChooser

DRAFTERS = ("w4", "w8", "mixed", "auto")
OVERHEAD = 0.3
"""Share of a step that is not in the linears, and costs a draft step as much as a target step."""


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


@dataclass(slots=True)
class DrafterStats:
    """Counts since the start; bytes of all kinds that were made; checksums of the last refresh."""

    kind: str
    refreshes: int = 0
    last_seconds: float = 0.0
    total_seconds: float = 0.0
    bytes: int = 0
    dirty_reasons: Counter[str] = field(default_factory=Counter)
    source_checksum: str = ""
    drafter_checksum: str = ""


class _DraftMethod:
    """Stands where a ``quant_method`` was; all but ``apply`` is as it was there (a tied head embeds, too)."""

    def __init__(self, original: Any, multiply: kernels.Multiply) -> None:
        self._original = original
        self._multiply = multiply

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As SGLang calls it."""
        return self._multiply(x, bias)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)


class _CollectMethod(_DraftMethod):
    """Multiplies as before and looks at the input."""

    def __init__(self, original: Any, activations: quantize.Activations) -> None:
        super().__init__(original, original.apply)
        self._activations = activations

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As SGLang calls it."""
        self._activations.add(x)
        result: torch.Tensor = self._original.apply(layer, x, bias)
        return result


Swap = tuple[dict[str, Any], Any, Any]
"""A module's attributes, the method that was there, the method to put there."""


class _Swapped:
    """Puts other methods into modules, and the very same ones back."""

    def __init__(self, swaps: list[Swap]) -> None:
        self._swaps = swaps

    def __enter__(self) -> None:
        # Not by setattr: a module's takes ten times longer, and this happens at every draft.
        for attributes, _, method in self._swaps:
            attributes["quant_method"] = method

    def __exit__(self, *_: object) -> None:
        for attributes, original, _ in self._swaps:
            attributes["quant_method"] = original


@dataclass(slots=True)
class _Made:
    """One kind's weights by layer, and what they were made from."""

    weights: dict[str, kernels.DraftWeight]
    swapped: _Swapped
    sources: list[int] = field(default_factory=list)
    contents: list[int] = field(default_factory=list)
    fresh: bool = False


class SelfDrafter:
    """The drafter of one model (with tensor parallelism: of one rank's shards).

    Raises:
        ValueError: for a kind or a group that there is not.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        drafter: str = "w4",
        *,
        group: int = 128,
        quantize_head: bool = True,
        device: str = "cpu",
        region: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        if drafter not in DRAFTERS:
            raise ValueError(f"drafter {drafter!r}: use {', '.join(DRAFTERS)}")
        if group not in quantize.GROUPS:
            raise ValueError(f"group {group}: use {', '.join(map(str, quantize.GROUPS))}")
        self._group, self._device, self._region = group, device, region
        self._layers = draft_layers.find(model, quantize_head)
        self._scales: dict[str, torch.Tensor] = {}
        self._activations: dict[str, quantize.Activations] = {}
        self._made: dict[str, _Made] = {}
        self._chooser = KindChooser(self._cost)
        self._costs: dict[tuple[str, int], float] = {}
        self.stats = DrafterStats("w8" if drafter == "auto" else drafter)
        # At once, so that whoever sizes the KV cache after this sees the memory. A mixed plan needs the weights.
        for kind in KINDS if drafter == "auto" else (drafter,):
            if kind != "mixed":
                self._made[kind] = self._allocate(dict.fromkeys(self._names(), kind))

    @property
    def reason(self) -> str | None:
        """Why there is nothing to draft with; None where there is."""
        if any(layer.reason is None for layer in self._layers):
            return None
        return "; ".join(sorted({layer.reason or "" for layer in self._layers})) or "the model has no linear layers"

    def drafting(self) -> AbstractContextManager[None]:
        """Inside, linears multiply by the drafter's weights; these are made first where an update came."""
        made = self._made.get(self.stats.kind)
        if made is None or not made.fresh:
            made = self.refresh()
        return made.swapped

    def mark_dirty(self, reason: str) -> None:
        """The model's weights, or the drafter's memory, may have changed. Cheap; may be called at will."""
        self.stats.dirty_reasons[reason] += 1
        for made in self._made.values():
            made.fresh = False

    def use(self, kind: str, batch: int) -> None:
        """The kind of the next draft; ``auto`` chooses for this batch."""
        if kind not in DRAFTERS:
            raise ValueError(f"drafter {kind!r}: use {', '.join(DRAFTERS)}")
        if kind == "auto":
            kind = self._chooser.choose(self.stats.kind, batch, self.stats.refreshes)
        self.stats.kind = kind

    def observe(self, accepted: int, drafted: int) -> None:
        """Of the kind in use, so many drafts were accepted."""
        self._chooser.observe(self.stats.kind, accepted, drafted)

    @torch.no_grad()
    def refresh(self) -> _Made:
        """Quantize the kind in use again, in place.

        Raises:
            DrafterError: naming the layer whose weight is not finite.
        """
        start = time.perf_counter()
        made = self._of_kind(self.stats.kind)
        for layer in self._drafted():
            try:
                made.weights[layer.name].load(layer.weight, self._scales.get(layer.name))
            except ValueError as error:
                raise DrafterError(f"{layer.name}: {error}: no drafter can be made from it") from None
        made.sources, made.contents = self._source_sums(), _content_sums(made)
        made.fresh = True
        self.stats.refreshes += 1
        self.stats.last_seconds = time.perf_counter() - start
        self.stats.total_seconds += self.stats.last_seconds
        self.stats.source_checksum = checksum.combined(made.sources)
        self.stats.drafter_checksum = checksum.combined(made.contents)
        return made

    def check(self) -> str | None:
        """None where the drafter that would draft is made of the weights that there are; else the text of an alarm.

        One that is known to be out of date is fine: it is made again before it drafts.
        """
        made = self._made.get(self.stats.kind)
        if made is None or not made.fresh:
            return None
        names = [layer.name for layer in self._drafted()]
        for now, then, what in (
            (self._source_sums(), made.sources, "is stale: a weight update did not mark it"),
            (_content_sums(made), made.contents, "lost its contents: its memory was released or overwritten"),
        ):
            changed = [name for name, a, b in zip(names, now, then, strict=True) if a != b]
            if changed:
                which = f"{len(changed)} of {len(names)} layers differ, the first is {changed[0]}"
                return f"the {self.stats.kind} drafter of refresh {self.stats.refreshes} {what} ({which})"
        return None

    def layers(self) -> list[LayerReport]:
        """Each layer as it drafts, from the contents of the memory that it drafts with."""
        made = self._made.get(self.stats.kind)
        if made is None or not made.fresh:
            made = self.refresh()
        return [_report(layer, made.weights.get(layer.name)) for layer in self._layers]

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Inside, the inputs of the linears (not of the head) are looked at, for :meth:`calibrate`. Not for a hot path."""
        swaps: list[Swap] = []
        for layer in self._drafted():
            if layer.name != draft_layers.HEAD:
                seen = self._activations.setdefault(layer.name, quantize.Activations(layer.weight.shape[1]))
                original = layer.module.quant_method
                swaps.append((layer.module.__dict__, original, _CollectMethod(original, seen)))
        with _Swapped(swaps):
            yield

    @torch.no_grad()
    def calibrate(self) -> dict[str, quantize.Scaling]:
        """Find the input scales (AWQ) for what was collected; the next refresh and all after it use them."""
        bits = quantize.BITS.get(self.stats.kind, 4)
        found = {}
        for layer in self._drafted():
            if (seen := self._activations.get(layer.name)) is None:
                continue
            group = quantize.group_for(layer.weight.shape[1], self._group)
            scaling = group and quantize.search_scaling(layer.weight, seen, bits, group)
            if scaling:
                found[layer.name] = scaling
        self._scales = {name: scaling.scale for name, scaling in found.items()}
        self._activations.clear()
        self.mark_dirty("calibrated")
        return found

    def _drafted(self) -> list[draft_layers.FoundLayer]:
        return [layer for layer in self._layers if layer.reason is None]

    def _names(self) -> list[str]:
        return [layer.name for layer in self._drafted()]

    def _source_sums(self) -> list[int]:
        return checksum.sums([layer.weight for layer in self._drafted()])

    def _of_kind(self, kind: str) -> _Made:
        if kind not in self._made:
            plan = self._mixed_plan() if kind == "mixed" else dict.fromkeys(self._names(), kind)
            self._made[kind] = self._allocate(plan)
        return self._made[kind]

    def _allocate(self, plan: dict[str, str]) -> _Made:
        """Memory for the layers; one that no kernel takes gets its reason and is left out from now on."""
        weights: dict[str, kernels.DraftWeight] = {}
        with self._region():
            for layer in self._drafted():
                try:
                    weights[layer.name] = kernels.make(plan[layer.name], layer.weight, self._group)
                except kernels.Unsupported as unsupported:
                    layer.reason = str(unsupported)
        swaps: list[Swap] = []
        for layer in self._drafted():
            original = layer.module.quant_method
            method = _DraftMethod(original, weights[layer.name].multiply)
            swaps.append((layer.module.__dict__, original, method))
        self.stats.bytes += sum(kernels.nbytes(weight) for weight in weights.values())
        return _Made(weights, _Swapped(swaps))

    @torch.no_grad()
    def _mixed_plan(self) -> dict[str, str]:
        errors, sizes = {}, {}
        for layer in self._drafted():
            sizes[layer.name] = layer.weight.numel()
            group = quantize.group_for(layer.weight.shape[1], self._group)
            if group is None:
                errors[layer.name] = 0.0
                continue
            try:
                made = quantize.quantize(layer.weight, 4, group)
            except ValueError as error:
                raise DrafterError(f"{layer.name}: {error}: no drafter can be made from it") from None
            errors[layer.name] = quantize.relative_error(layer.weight, quantize.dequantize(made))
        return quantize.mixed_plan(errors, sizes)

    def _cost(self, kind: str, batch: int) -> float:
        """A draft step's cost over a target step's, by the bytes of the weights."""
        ratio = {"w4": 0.27, "w8": 0.52}[kind]
        return OVERHEAD + (1 - OVERHEAD) * ratio


def _content_sums(made: _Made) -> list[int]:
    """The sampled sum of each layer's memory."""
    parts = [(name, buffer) for name, weight in made.weights.items() for buffer in weight.buffers()]
    totals = dict.fromkeys(made.weights, 0)
    for (name, _), value in zip(parts, checksum.sums([buffer for _, buffer in parts]), strict=True):
        totals[name] += value
    return list(totals.values())


def _report(layer: draft_layers.FoundLayer, weight: kernels.DraftWeight | None) -> LayerReport:
    shape = tuple(getattr(layer.module, "weight", torch.empty(0)).shape)
    size = sum(p.numel() * p.element_size() for p in layer.module.parameters(recurse=False))
    if weight is None or layer.reason is not None:
        return LayerReport(layer.name, f"as it is ({layer.reason})", shape, size, 0, 0.0)
    error = quantize.relative_error(layer.weight, weight.dequantized())
    return LayerReport(layer.name, weight.method, shape, size, kernels.nbytes(weight), error)
