"""What a prompt's responses were like before: how long, so that prompts with short ones can go first.

A prompt is known by what it says; a long mean goes out of date as the policy changes, so the newest counts half.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections import OrderedDict
from typing import Any

KEPT = 200_000
NEWEST = 0.5
KEY = 8
"""Bytes that stand for a prompt."""


class LengthHistory:
    """Mean response length in tokens of the prompts that were trained, the last ``KEPT`` of them."""

    def __init__(self) -> None:
        self._lengths: OrderedDict[bytes, float] = OrderedDict()

    def observe(self, prompt: Any, length: float) -> None:
        """Responses to ``prompt`` (any value with a repr) had this mean length."""
        key = _key(prompt)
        before = self._lengths.pop(key, None)
        self._lengths[key] = length if before is None else NEWEST * length + (1 - NEWEST) * before
        if len(self._lengths) > KEPT:
            self._lengths.popitem(last=False)

    def expected(self, prompt: Any) -> float | None:
        """The length to expect, or None for a prompt that was never trained."""
        return self._lengths.get(_key(prompt))

    def to_dict(self) -> dict[str, str]:
        """For a checkpoint, as JSON: 16 bytes a prompt."""
        keys, lengths = b"".join(self._lengths), struct.pack(f"<{len(self._lengths)}f", *self._lengths.values())
        return {"prompts": base64.b64encode(keys).decode(), "lengths": base64.b64encode(lengths).decode()}

    @classmethod
    def restore(cls, data: dict[str, str]) -> LengthHistory:
        """From :meth:`to_dict`."""
        made = cls()
        keys, packed = base64.b64decode(data["prompts"]), base64.b64decode(data["lengths"])
        lengths = struct.unpack(f"<{len(packed) // 4}f", packed)
        made._lengths.update((keys[KEY * i : KEY * (i + 1)], length) for i, length in enumerate(lengths))
        return made


def _key(prompt: Any) -> bytes:
    return hashlib.blake2b(repr(prompt).encode(), digest_size=KEY).digest()
