"""The drafter that is the policy itself: its own modules, with other weights behind their linears while they draft.

A linear of SGLang multiplies through its ``quant_method``. Inside :meth:`SelfDrafter.drafting` that attribute is
another object, which multiplies by the quantized weight; outside, it is the very object that was there, so that a
server that does not draft pays nothing. Embeddings, norms and KV cache are shared. The drafter has neither parameters
nor buffers, so that state dicts, checksums and weight updates of the model do not see it.

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

from specrollout import checksum, draft_layers, quantize
from specrollout.draft_weights import CollectMethod, DrafterError, DraftWeights, LayerReport, Swap, Swapped
from specrollout.kinds import KINDS, KindChooser, StepCosts, doubling

__all__ = ["DRAFTERS", "DrafterError", "DrafterStats", "LayerReport", "SelfDrafter"]

DRAFTERS = ("w4", "w8", "mixed", "auto")
BYTES = {"w4": 0.27, "w8": 0.52}
"""Bytes of the weights over those in bfloat16."""


@dataclass(slots=True)
class DrafterStats:
    """The kind in use; counts since the start; bytes of all kinds; checksums of the last refresh.

    ``replaced`` norms, rotary embeddings and gates draft with native code.
    """

    kind: str
    refreshes: int = 0
    last_seconds: float = 0.0
    total_seconds: float = 0.0
    bytes: int = 0
    replaced: int = 0
    dirty_reasons: Counter[str] = field(default_factory=Counter)
    source_checksum: str = ""
    drafter_checksum: str = ""


class SelfDrafter:
    """The drafter of one model (with tensor parallelism: of one rank's shards).

    ``region`` is the context in which memory is taken (a memory saver's, where there is one). It is taken at once, so
    that whoever sizes the KV cache afterwards sees it; only a mixed plan waits for the weights.

    Raises:
        ValueError: for a kind or a group that there is not.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        drafter: str = "w4",
        *,
        group: int = quantize.GROUPS[0],
        quantize_head: bool = True,
        device: str = "cpu",
        region: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        _known(drafter)
        if group not in quantize.GROUPS:
            raise ValueError(f"group {group}: use {', '.join(map(str, quantize.GROUPS))}")
        self._group, self._device, self._region = group, device, region
        self._layers = draft_layers.find(model, quantize_head)
        self._modules = list(model.modules()) if device == "cpu" else []
        self._input_scales: dict[str, torch.Tensor] = {}
        self._activations: dict[str, quantize.Activations] = {}
        self._kinds: dict[str, DraftWeights] = {}
        self.costs = StepCosts(self._linears)
        self._chooser = KindChooser(self.costs.cost)
        self._ratios: dict[tuple[str, int], float] = {}
        self.stats = DrafterStats("w8" if drafter == "auto" else drafter)
        for kind in KINDS if drafter == "auto" else (drafter,):
            if kind != "mixed":
                self._of_kind(kind)

    @property
    def reason(self) -> str | None:
        """Why the kind in use has nothing to draft with; None where it has."""
        return self._of_kind(self.stats.kind).reason

    def drafting(self) -> AbstractContextManager[None]:
        """Inside, linears multiply by the drafter's weights; these are made first where an update came.

        Raises:
            DrafterError: naming the layer whose weight is not finite.
        """
        weights = self._kinds.get(self.stats.kind)
        if weights is None or not weights.fresh:
            weights = self.refresh()
        return weights.swapped

    def mark_dirty(self, reason: str) -> None:
        """The model's weights, or the drafter's memory, may have changed. Cheap; may be called at will."""
        self.stats.dirty_reasons[reason] += 1
        for weights in self._kinds.values():
            weights.fresh = False

    def use(self, kind: str, batch: int) -> None:
        """The kind of the next draft; ``auto`` chooses for this batch."""
        if kind == "auto":
            kind = self._chooser.choose(self.stats.kind, batch, self.stats.refreshes)
        self.stats.kind = _known(kind)

    def observe(self, accepted: int, drafted: int, batch: int, step_s: float) -> None:
        """Of the kind in use, so many drafts were accepted, and a draft step of the batch took so long."""
        self._chooser.observe(self.stats.kind, accepted, drafted)
        self.costs.drafted(self.stats.kind, batch, step_s)

    def refresh(self) -> DraftWeights:
        """Quantize the kind in use now; raises as :meth:`drafting` does."""
        start = time.perf_counter()
        weights = self._of_kind(self.stats.kind)
        weights.load(self._input_scales)
        stats = self.stats
        stats.refreshes += 1
        stats.replaced = weights.replaced
        stats.last_seconds = time.perf_counter() - start
        stats.total_seconds += stats.last_seconds
        stats.source_checksum = checksum.combined(weights.sources)
        stats.drafter_checksum = checksum.combined(weights.contents)
        return weights

    def check(self) -> str | None:
        """None where the drafter that would draft is made of the weights that there are; else the text of an alarm.

        One that is known to be out of date is fine: it is made again before it drafts.
        """
        weights = self._kinds.get(self.stats.kind)
        return weights.stale() if weights is not None and weights.fresh else None

    def layers(self) -> list[LayerReport]:
        """Each layer as it drafts, from the contents of the memory that it drafts with."""
        weights = self._kinds.get(self.stats.kind)
        if weights is None or not weights.fresh:
            weights = self.refresh()
        return weights.report()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Inside, the inputs of the linears (not of the head) are looked at, for :meth:`calibrate`. Slow."""
        methods: list[Swap] = []
        for layer in self._layers:
            if layer.reason is None and layer.name != draft_layers.HEAD:
                seen = self._activations.setdefault(layer.name, quantize.Activations(layer.weight.shape[1]))
                methods.append((layer.module, "quant_method", CollectMethod(layer.module.quant_method, seen)))
        with Swapped(methods):
            yield

    @torch.no_grad()
    def calibrate(self) -> dict[str, quantize.Scaling]:
        """Find the input scales (AWQ) for what was collected; the next refresh and all after it use them."""
        bits = quantize.BITS.get(self.stats.kind, 4)
        found = {}
        for layer in self._layers:
            group = layer.name in self._activations and quantize.group_for(layer.weight.shape[1], self._group)
            scaling = group and quantize.search_scaling(layer.weight, self._activations[layer.name], bits, group)
            if scaling:
                found[layer.name] = scaling
        self._input_scales = {name: scaling.scale for name, scaling in found.items()}
        self._activations.clear()
        self.mark_dirty("calibrated")
        return found

    def _of_kind(self, kind: str) -> DraftWeights:
        if kind not in self._kinds:
            usable = [layer for layer in self._layers if layer.reason is None]
            plan = self._mixed_plan(usable) if kind == "mixed" else {layer.name: kind for layer in usable}
            with self._region():
                self._kinds[kind] = DraftWeights(kind, self._layers, plan, self._group, self._modules)
            self.stats.bytes += self._kinds[kind].bytes
        return self._kinds[kind]

    @torch.no_grad()
    def _mixed_plan(self, layers: list[draft_layers.FoundLayer]) -> dict[str, str]:
        errors = {layer.name: quantize.expected_error(layer.weight, 4, self._group) for layer in layers}
        return quantize.mixed_plan(errors, {layer.name: layer.weight.numel() for layer in layers})

    def _linears(self, kind: str, batch: int) -> float:
        """Time of the quantized linears over the others': measured once a size of batch on a CPU, else by bytes."""
        size = doubling(batch)
        if (kind, size) not in self._ratios:
            self._ratios[kind, size] = BYTES[kind]
            if self._device == "cpu":
                weights = self._of_kind(kind)
                ratio = weights.seconds(size, drafted=True) / weights.seconds(size, drafted=False)
                self._ratios[kind, size] = ratio
        return self._ratios[kind, size]


def _known(drafter: str) -> str:
    if drafter not in DRAFTERS:
        raise ValueError(f"drafter {drafter!r}: use {', '.join(DRAFTERS)}")
    return drafter
