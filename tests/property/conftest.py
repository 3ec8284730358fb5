import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import april.round

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fakes"))


@pytest.fixture(autouse=True, scope="session")
def _no_pause() -> Iterator[None]:
    """Examples have no real time to lose."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(april.round, "STALL_PAUSE_S", 0.0)
        yield
