"""A block of memory and who frees it."""

from __future__ import annotations

import os

from april.memory.library import Core


class Block:
    """Memory at ``address``, which holds whether it is paused or not. Freed by :meth:`free` or its last reference.

    Reading and writing go through the runtime: for tests and tools. On a CPU the address itself can be used.
    """

    __slots__ = ("_core", "_process", "address", "size", "tag")

    def __init__(self, core: Core, address: int, size: int, tag: str) -> None:
        self._core: Core | None = core
        self._process = os.getpid()
        self.address, self.size, self.tag = address, size, tag

    def free(self) -> None:
        """Gives it back; calling it again does nothing. In a fork, where the memory is another's, it does nothing."""
        core, self._core = self._core, None
        if core is not None and core.opened and os.getpid() == self._process:
            core.free(self.address)

    def __del__(self) -> None:
        self.free()

    def read(self) -> bytes:
        """All of it."""
        assert self._core is not None, "freed"
        return self._core.read(self.address, self.size)

    def write(self, data: bytes, at: int = 0) -> None:
        """``data`` from offset ``at`` on."""
        assert self._core is not None, "freed"
        assert at + len(data) <= self.size, "more than the block holds"
        self._core.write(self.address + at, data)
