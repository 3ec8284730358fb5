"""A drafter's memory: sized before the KV cache, back with the weights and before the cache, dirty until made anew."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from april.memory import MemorySaver
from april.memory.errors import MemoryFault
from april.memory.kinds import DRAFTER, KV_CACHE, WEIGHTS, in_order, with_followers

MIB = 1 << 20
PLACED = "from april.memory.install import install\nassert install('auto', 'cpu') == 'april'\n"


def test_a_drafter_goes_with_the_weights_where_there_is_one() -> None:
    assert with_followers(WEIGHTS, [WEIGHTS, DRAFTER]) == [WEIGHTS, DRAFTER]
    assert with_followers(WEIGHTS, [WEIGHTS]) == [WEIGHTS]
    assert with_followers(KV_CACHE, [KV_CACHE, DRAFTER]) == [KV_CACHE]
    assert with_followers(None, [WEIGHTS, DRAFTER]) == [None]
    assert in_order([KV_CACHE, DRAFTER, WEIGHTS]) == [WEIGHTS, DRAFTER, KV_CACHE]


def test_an_engine_that_names_its_own_tags_only(python: Callable[..., str]) -> None:
    """SGLang's calls in its order, through torch_memory_saver's surface."""
    python(
        PLACED + "import torch\nfrom torch_memory_saver import torch_memory_saver as tms\n"
        "from april.memory import drafter\nassert drafter.tag() == 'drafter' and not drafter.dirty()\n"
        "with tms.region('weights', enable_cpu_backup=True): w = torch.ones(1 << 20)\n"
        "with tms.region(drafter.tag()): d = torch.ones(1 << 20)\n"
        "with tms.region('kv_cache'): k = torch.zeros(1 << 20)\n"
        "tms.pause('kv_cache'); assert tms.saver.state(d.data_ptr()) == 'active'\n"
        "tms.pause('weights'); assert tms.saver.state(d.data_ptr()) == 'paused'\n"
        "tms.pause('cuda_graph'); assert tms.saver.stats().total.paused == 3 << 22\n"
        "tms.resume('weights')\n"
        "assert tms.saver.state(d.data_ptr()) == 'active' and tms.saver.state(k.data_ptr()) == 'paused'\n"
        "assert drafter.dirty() and w.sum() == 1 << 20, 'dropped, while the weights were kept'\n"
        "d.fill_(2); drafter.mark_clean(); assert not drafter.dirty()\n"
        "tms.resume('cuda_graph'); tms.resume('kv_cache'); assert d.sum() == 2 << 20\n"
    )


def test_without_our_saver_it_is_part_of_the_weights(python: Callable[..., str]) -> None:
    python(
        "from april.memory import drafter\nassert drafter.tag() == 'weights' and not drafter.dirty()\n"
        "drafter.mark_clean()\n"
    )


def test_a_cache_that_is_sized_before_the_drafters_share_does_not_come_back() -> None:
    """sglang#36452: what a device has is given out in the order of a resume, and the error names the cache."""
    saver = MemorySaver(limit=64 * MIB)
    held = [saver.allocate(16 * MIB, WEIGHTS), saver.allocate(48 * MIB, KV_CACHE)]
    saver.pause()
    held.append(saver.allocate(16 * MIB, DRAFTER))  # into what the released cache left
    saver.pause(DRAFTER)
    with pytest.raises(MemoryFault, match=r"resume\(kv_cache\).* 50,331,648 bytes wanted") as caught:
        saver.resume()
    assert "33,554,432 free" in str(caught.value)
    assert [saver.state(block.address) for block in held] == ["active", "paused", "active"]


@pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed")
def test_sglang_makes_the_draft_worker_before_it_sizes_the_cache() -> None:
    found = find_spec("sglang")
    assert found is not None
    assert found.origin is not None
    tree = ast.parse((Path(found.origin).parent / "srt" / "managers" / "scheduler.py").read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    body = next(node for node in functions if node.name == "init_model_worker")
    calls = [n.func.attr for n in ast.walk(body) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    places = [calls.index(name) for name in ("init_tp_model_worker", "maybe_init_draft_worker", "init_memory_pools")]
    assert places == sorted(places)
