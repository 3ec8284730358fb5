"""The partial buffer. ``PartialDataSource``, made on the host's own, is what ``--data-source-path`` names."""

from __future__ import annotations

from typing import Any

__all__ = ["PartialDataSource"]


def __getattr__(name: str) -> Any:
    # The class derives from the host's, which must not be imported before somebody asks for it.
    if name == "PartialDataSource":
        from april.buffer.source import partial_data_source

        return partial_data_source()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
