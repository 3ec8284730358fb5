"""Watching the host's own rollout function from its data source, without taking part."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from april import samples
from april.core import Span
from april.telemetry.timeline import Timeline


class Observed:
    """Remembers the groups that a data source gives while this context lasts.

    The hosts write a response into the samples that they were given, so these tell what was generated, also where a
    group was dropped afterwards. (A custom generate function may return others: then only those in the output count.)
    """

    def __init__(self, data_source: Any, line: Timeline) -> None:
        self._data_source = data_source
        self._line = line
        self._given: list[tuple[Any, int, int]] = []
        self.groups = 0

    def __enter__(self) -> Observed:
        self._get_samples = self._data_source.get_samples
        self._data_source.get_samples = self.get_samples
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The method of the class shows again.
        del self._data_source.get_samples

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """What the data source gives, watched from now on."""
        groups: list[list[Any]] = self._get_samples(num_samples)
        self.groups += len(groups)
        for group in groups:
            for position, sample in enumerate(samples.leaves(group)):
                self._line.watch(sample)
                self._given.append((sample, position, sample.response_length))
        return groups

    def tokens(self) -> int:
        """Response tokens generated since."""
        return sum(sample.response_length - before for sample, _, before in self._given)

    def spans(self) -> list[Span]:
        """One span for each sample given."""
        found = []
        for sample, position, before in self._given:
            span = self._line.span(sample)
            if span is not None:
                outcome = "partial" if sample.status.value in ("aborted", "pending") else "finished"
                tokens = sample.response_length - before
                found.append(Span(sample.group_index, position, *span, tokens, outcome))
        return found
