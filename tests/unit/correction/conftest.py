import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fakes"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Prompts of 3, 40, 5 and 50 tokens, over and over."""
    from fake_host import install
    from fake_sglang import FakeSglang

    monkeypatch.setenv("APRIL_RUN_DIR", str(tmp_path))
    return install(monkeypatch, FakeSglang(lambda ids: (3, 40, 5, 50)[ids[1] % 4]))
