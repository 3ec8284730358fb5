"""Batched decode attention gives what SGLang's own loop gives."""

from __future__ import annotations

import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from april.patches.cpu.decode_attention import forward_decode
from specrollout.blocks import WASTE, blocks

pytestmark = pytest.mark.contract

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def backend():  # type: ignore[no-untyped-def]
    """SGLang's class without its constructor, which wants a model."""
    import os

    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    from april.patches.cpu.torchvision_ops import arm

    arm()
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    return TorchNativeAttnBackend.__new__(TorchNativeAttnBackend)


@pytest.mark.parametrize("lengths", [[7], [1, 1], [5, 64, 3, 63, 200, 1], [300] * 4 + [2] * 12])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_loop(backend, lengths, heads, dtype) -> None:  # type: ignore[no-untyped-def]
    query_heads, kv_heads = heads
    generator = torch.Generator().manual_seed(0)
    batch, context, size = len(lengths), max(lengths) + 5, 16

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    query = draw(batch, query_heads, size)
    slots = batch * context + 1
    k_cache, v_cache = draw(slots, kv_heads, size), draw(slots, kv_heads, size)
    req_to_token = torch.randperm(batch * context, generator=generator).view(batch, context)
    pool = torch.randperm(batch, generator=generator)
    arguments = (k_cache, v_cache, req_to_token, pool, torch.tensor(lengths))
    options = {"scaling": size**-0.5, "enable_gqa": query_heads != kv_heads}
    loop = type(backend)._run_sdpa_forward_decode
    expected = loop(backend, query, torch.empty_like(query), *arguments, **options)

    def never(*args: object, **kwargs: object) -> torch.Tensor:
        if batch > 1:
            raise AssertionError("left to SGLang's loop")
        return loop(*args, **kwargs)

    got = forward_decode(never, backend, query, torch.empty_like(query), *arguments, **options)
    torch.testing.assert_close(got, expected, atol=2e-2 if dtype is torch.bfloat16 else 1e-5, rtol=1e-2)


def test_sliding_windows_and_cross_attention_stay_with_sglang() -> None:
    seen = []

    def original(*args: object, **kwargs: object) -> str:
        seen.append(kwargs.get("sliding_window_size"))
        return "original"

    some = types.SimpleNamespace(shape=(2,))
    assert forward_decode(original, *[some] * 8, None, sliding_window_size=4) == "original"
    assert forward_decode(original, *[some] * 9) == "original"
    assert seen == [4, None]


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=80))
@settings(deadline=None)
def test_blocks_hold_each_sequence_once_and_waste_little(lengths: list[int]) -> None:
    cut = blocks(lengths)
    assert sorted(index for block in cut for index in block) == list(range(len(lengths)))
    for block in cut:
        content = sum(lengths[index] for index in block)
        assert lengths[block[0]] == max(lengths[index] for index in block)
        assert lengths[block[0]] * len(block) <= WASTE * content or len(block) == 1
