"""Which weights wrote each output token of a request: pure logic."""

from __future__ import annotations

from bisect import bisect_right


class TokenVersions:
    """The weight version of each output token, kept as the positions where it changes.

    A slice is a list with one version a token, which is how SGLang cuts what a request says about its tokens
    (``customized_info``) into the pieces that it sends.
    """

    __slots__ = ("_starts", "_versions")

    def __init__(self, version: str) -> None:
        self._starts = [0]
        self._versions = [version]

    def mark(self, at: int, version: str) -> None:
        """Tokens from position ``at`` on are of ``version``; positions never go back."""
        assert at >= self._starts[-1], f"tokens from {at} on, after a mark at {self._starts[-1]}"
        if at == self._starts[-1]:
            self._versions[-1] = version
        elif version != self._versions[-1]:
            self._starts.append(at)
            self._versions.append(version)

    def __getitem__(self, where: slice) -> list[str]:
        """The versions of the tokens ``[where.start, where.stop)``."""
        return [self._versions[bisect_right(self._starts, at) - 1] for at in range(where.start, where.stop)]
