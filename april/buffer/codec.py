"""Groups as bytes and back, without loss: the samples' dictionaries pickled, their long lists of numbers as arrays.

A list is packed only where unpacking gives the same list: integers of any one width, floats in 32 bits where none of
them changes (what an engine reports was 32 bits wide), else in 64.
"""

from __future__ import annotations

import pickle
from array import array
from typing import Any

from april import samples
from april.core import Group

Fields = dict[str, Any]
MIN_PACKED = 16


class SampleCodec:
    """Encodes groups of a host's ``Sample`` class (``to_dict``, ``from_dict``)."""

    def __init__(self, sample: Any) -> None:
        self._sample = sample

    def encode(self, group: Group) -> bytes:
        """What ``decode`` takes."""
        return pickle.dumps([_dump(member.payload) for member in group.members], protocol=5)

    def decode(self, data: bytes) -> Group:
        """The group; new objects."""
        return samples.group_of(self.parse(fields(data)))

    def restart(self, group: Group) -> Group:
        """The group's prompts only."""
        return samples.group_of([samples.restart(member.payload) for member in group.members])

    def parse(self, member: Any) -> Any:
        """A sample of its fields; of a list, a list."""
        if isinstance(member, list):
            return [self.parse(part) for part in member]
        return self._sample.from_dict(member)


def fields(data: bytes) -> list[Any]:
    """A group's members as dictionaries of their fields (or, of a fan-out, lists of such): needs no host."""
    return [_load(member) for member in pickle.loads(data)]


def _dump(member: Any) -> Any:
    if isinstance(member, list):
        return [_dump(part) for part in member]
    plain, arrays = {}, {}
    for name, value in member.to_dict().items():
        packed = pack(value) if type(value) is list and len(value) >= MIN_PACKED else None
        if packed is None:
            plain[name] = value
        else:
            arrays[name] = packed
    return plain, arrays


def _load(member: Any) -> Any:
    if isinstance(member, list):
        return [_load(part) for part in member]
    plain, arrays = member
    return {**plain, **{name: values.tolist() for name, values in arrays.items()}}


def pack(values: list[Any]) -> array[Any] | None:
    """An array whose ``tolist`` equals ``values``, or None where there is none."""
    kinds = set(map(type, values))
    if kinds == {int}:
        for width in "bhiq":
            try:
                return array(width, values)
            except OverflowError:
                continue
    elif kinds == {float}:
        single = array("f", values)
        return single if single.tolist() == values else array("d", values)
    return None
