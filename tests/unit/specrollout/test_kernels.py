"""Kernels against the numerics that they stand for, and the layouts that a GPU will read."""

import pytest
import torch

from specrollout import kernels, quantize
from specrollout.kernels import Unsupported, between, build, cpu, gpu
from specrollout.kernels.aten import AtenW4, AtenW8
from specrollout.kernels.native import NativeWeight

native = pytest.mark.skipif(bool(build.missing()), reason=f"this CPU has no {build.missing()}")
TYPES = [torch.float32, torch.bfloat16]
SHAPES = [(16, 32), (1, 64), (17, 96), (100, 576), (192, 128), (50, 1536)]


def made(outputs: int, inputs: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return (torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * 0.02).to(dtype)


@native
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["w4", "w8"])
def test_native_codes_are_those_of_the_numerics(kind, shape, dtype):
    source = made(*shape, dtype)
    source[0, :32] = 0
    scale = torch.rand(shape[1]) + 0.5
    for input_scale in (None, scale):
        weight = NativeWeight(kind, source, 128)
        weight.load(source, input_scale)
        got = weight.quantized()
        wanted = quantize.quantize(source, quantize.BITS[kind], quantize.group_for(shape[1]) or 0, input_scale)
        for name in ("codes", "scales", "zeros"):
            assert torch.equal(getattr(got, name), getattr(wanted, name)), name


@native
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["w4", "w8"])
def test_native_products(kind, shape, dtype):
    source, bias = made(*shape, dtype), made(1, shape[0], dtype)[0]
    weight = NativeWeight(kind, source, 128)
    weight.load(source)
    exact = weight.dequantized()
    for rows in (1, 2, 3, 4, 5, 8, 9, 16, 67):
        x = made(rows, shape[1], dtype, seed=rows) * 50
        wanted = in_8_bits(x, quantize.group_for(shape[1]) or 0) @ exact.T
        near = {"rtol": 1e-4 if dtype == torch.float32 else 2**-8, "atol": 1e-5}
        torch.testing.assert_close(weight.multiply(x).float(), wanted, **near)
        torch.testing.assert_close(weight.multiply(x, bias).float(), wanted + bias.float(), **near)
        if shape[0] > 1:
            assert relative(weight.multiply(x), x.float() @ exact.T) < 0.012
    assert weight.multiply(made(6, shape[1], dtype).view(2, 3, -1)).shape == (2, 3, shape[0])


@native
def test_native_on_strides_zeros_and_large_inputs():
    source = made(32, 128, torch.float32)
    weight = NativeWeight("w4", source, 128)
    weight.load(source)
    x = made(4, 256, torch.float32)
    assert torch.equal(weight.multiply(x[:, ::2]), weight.multiply(x[:, ::2].contiguous()))
    assert torch.equal(weight.multiply(torch.zeros(3, 128)), torch.zeros(3, 32))
    assert weight.multiply(torch.zeros(0, 128)).shape == (0, 32)
    assert relative(weight.multiply(x[:, :128] * 1e15), (x[:, :128] * 1e15) @ weight.dequantized().T) < 0.012
    assert not torch.isfinite(weight.multiply(torch.full((1, 128), float("nan")))).any()


@native
def test_native_refuses_what_it_would_read_wrongly():
    source = made(32, 128, torch.bfloat16)
    weight = NativeWeight("w4", source, 128)
    weight.load(source)
    for x in (torch.zeros(1, 128), torch.zeros(1, 64, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="not"):
            weight.multiply(x)
    with pytest.raises(ValueError, match="became"):
        weight.load(source.float())
    source[3, 5] = float("nan")
    with pytest.raises(ValueError, match="NaN or an infinity"):
        weight.load(source)


@native
def test_threads_give_the_same(monkeypatch):
    source = made(320, 576, torch.bfloat16)
    x = made(9, 576, torch.bfloat16)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            weight = NativeWeight("w4", source, 128)
            weight.load(source)
            found.append(weight.multiply(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@native
def test_a_refresh_stays_where_it_was():
    weight = NativeWeight("w8", made(32, 128, torch.float32), 128)
    weight.load(made(32, 128, torch.float32))
    places = [buffer.data_ptr() for buffer in weight.buffers()]
    weight.load(made(32, 128, torch.float32, seed=1), torch.rand(128) + 0.5)
    assert [buffer.data_ptr() for buffer in weight.buffers()] == places
    assert relative(weight.dequantized(), made(32, 128, torch.float32, seed=1)) < 0.01


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scaled", [False, True])
def test_aten_products(dtype, scaled):
    source = made(64, 192, dtype)
    weights = [AtenW4(source, 128)] + ([AtenW8(source)] if dtype == torch.bfloat16 else [])
    for weight in weights:
        weight.load(source, torch.rand(192) + 0.5 if scaled else None)
        x = made(5, 192, dtype, seed=3) * 50
        assert relative(weight.multiply(x), x.float() @ weight.dequantized().T) < 0.012
        bias = made(1, 64, dtype)[0]
        torch.testing.assert_close(weight.multiply(x, bias), weight.multiply(x) + bias)
        assert relative(weight.dequantized(), source) < (0.14 if "w4" in weight.method else 0.02)


def test_reasons():
    for source, why in (
        (torch.zeros(16, 100), "not a multiple of 32"),
        (torch.zeros(16, 128, dtype=torch.float64), "float64"),
        (torch.zeros(2, 16, 128), "3 dimensions"),
        (torch.zeros(16, 128, device="meta"), "no kernel for a meta"),
    ):
        with pytest.raises(Unsupported, match=why):
            kernels.make("w4", source, 128)
    with pytest.raises(Unsupported, match="multiple of 16"):
        AtenW4(torch.zeros(17, 128), 128)
    with pytest.raises(Unsupported, match="bfloat16, not float32"):
        gpu.make("w4", torch.zeros(64, 128), 128)
    with pytest.raises(Unsupported, match="Marlin needs multiples"):
        gpu.MarlinWeight(torch.zeros(65, 128), 128)


def test_without_the_native_library_pytorch_multiplies(monkeypatch, caplog):
    monkeypatch.setattr(cpu.build, "missing", lambda: ["avx512_vnni"])
    cpu.no_native.cache_clear()
    try:
        assert "aten" in kernels.make("w4", torch.zeros(16, 128), 128).method
        assert "aten" in kernels.make("w8", torch.zeros(16, 128, dtype=torch.bfloat16), 128).method
        assert "no avx512_vnni" in caplog.text
    finally:
        cpu.no_native.cache_clear()


def test_words_for_marlin_hold_the_outputs_in_awqs_order():
    codes = torch.randint(0, 16, (3, 32), generator=torch.Generator().manual_seed(0))
    words = gpu.awq_words(codes)
    assert words.shape == (3, 4)
    assert words.dtype == torch.int32
    for nibble, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        assert torch.equal((words >> (4 * nibble)) & 15, codes.view(3, 4, 8)[:, :, output].int())


class MultiPlatformOp(torch.nn.Module):
    """As SGLang's: a call goes to what the module keeps."""

    def __init__(self):
        super().__init__()
        self._forward_method = self.forward_native

    def forward(self, *args, **kwargs):
        return self._forward_method(*args, **kwargs)


class RMSNorm(MultiPlatformOp):
    """As SGLang's, in float64."""

    def __init__(self, size, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size, dtype=dtype) + 0.5, requires_grad=False)
        self.hidden_size, self.variance_epsilon, self.variance_size_override = size, 1e-5, None
        self.fp32_residual, self.override_orig_dtype, self.cast_x_before_out_mul = False, None, False

    def forward_native(self, x, residual=None, post_residual_addition=None):
        wide = x.double() + (0 if residual is None else residual.double())
        out = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * self.weight.double()
        return out.to(x.dtype) if residual is None else (out.to(x.dtype), wide.to(x.dtype))


class SiluAndMul(MultiPlatformOp):
    """As SGLang's, in float64."""

    def forward_native(self, x):
        gate, up = x.double().chunk(2, -1)
        return (torch.nn.functional.silu(gate) * up).to(x.dtype)


class RotaryEmbedding(MultiPlatformOp):
    """As SGLang's, in float64."""

    def __init__(self, size, turned, neox, dtype):
        super().__init__()
        self.head_size, self.rotary_dim, self.is_neox_style = size, turned, neox
        angles = torch.arange(50)[:, None] / 100 ** (torch.arange(turned // 2) / turned * 2)
        self.register_buffer("cos_sin_cache", torch.cat([angles.cos(), angles.sin()], -1).to(dtype))

    def forward_native(self, positions, query, key, offsets=None, fused_set_kv_buffer_arg=None):
        positions = positions if offsets is None else positions + offsets
        return self._turn(positions, query), self._turn(positions, key)

    def _turn(self, positions, x):
        cosine, sine = self.cos_sin_cache.double()[positions].chunk(2, -1)
        heads = x.double().reshape(len(x), -1, self.head_size).clone()
        part = heads[..., : self.rotary_dim]
        if self.is_neox_style:
            a, b = part.chunk(2, -1)
        else:
            a, b = part[..., ::2], part[..., 1::2]
        turned = a * cosine[:, None] - b * sine[:, None], b * cosine[:, None] + a * sine[:, None]
        joined = torch.cat(turned, -1) if self.is_neox_style else torch.stack(turned, -1).flatten(-2)
        return torch.cat([joined, heads[..., self.rotary_dim :]], -1).reshape(x.shape).to(x.dtype)


def replaced(module: torch.nn.Module):
    ((found, forward),) = between.replacements([module])
    assert found is module
    return forward


NEAR = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.bfloat16: {"rtol": 2**-8, "atol": 1e-6}}


@native
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [5, 64, 576])
def test_norms(size, dtype):
    norm, x, residual = RMSNorm(size, dtype), made(7, size, dtype) * 100, made(7, size, dtype, seed=1) * 100
    forward = replaced(norm)
    kept = residual.clone()
    torch.testing.assert_close(forward(x), norm(x), **NEAR[dtype])
    torch.testing.assert_close(forward(x, residual), norm(x, residual), **NEAR[dtype])
    torch.testing.assert_close(forward(x.view(7, 1, size)), norm(x).view(7, 1, size), **NEAR[dtype])
    assert torch.equal(residual, kept)
    strided = torch.cat([x, x], 1)[:, :size]
    assert torch.equal(forward(strided), forward(x))
    assert torch.equal(forward(x.half()), norm(x.half()))  # what it does not know is the original's


@native
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [1, 48, 100])
def test_gates(size, dtype):
    x = made(5, 2 * size, dtype) * 500
    x[0, 0], x[1, 0] = 200, -200
    torch.testing.assert_close(replaced(SiluAndMul())(x), SiluAndMul()(x), **NEAR[dtype])


@native
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("size", "turned"), [(64, 64), (40, 24), (8, 4)])
@pytest.mark.parametrize("neox", [True, False])
def test_rotations(neox, size, turned, dtype):
    module = RotaryEmbedding(size, turned, neox, dtype)
    joined = made(6, 5 * size, dtype) * 50
    query, key = joined.split([3 * size, 2 * size], dim=1)  # as a layer has them: parts of one product
    positions = torch.tensor([0, 49, 7, 7, 1, 30])
    before = joined.clone()
    for got, wanted in zip(replaced(module)(positions, query, key), module(positions, query, key), strict=True):
        torch.testing.assert_close(got, wanted, **NEAR[dtype])
        assert got.is_contiguous()
    assert torch.equal(joined, before)
    offsets = torch.zeros(6, dtype=torch.int64)
    for got, wanted in zip(
        replaced(module)(positions, query, key, offsets), module(positions, query, key, offsets), strict=True
    ):
        assert torch.equal(got, wanted)


@native
def test_modules_with_other_numerics_stay_as_they_are():
    unusual = [RMSNorm(8, torch.float32) for _ in range(4)]
    unusual[0].fp32_residual = True
    unusual[1].variance_size_override = 4
    unusual[2].cast_x_before_out_mul = True
    unusual[3]._forward_method = unusual[3].forward  # compiled, or another's
    assert list(between.replacements([*unusual, RMSNorm(8, torch.float16), torch.nn.Linear(2, 2)])) == []


def in_8_bits(x: torch.Tensor, group: int) -> torch.Tensor:
    """The input as the native kernels round it: symmetric, a scale for each row and group."""
    grouped = x.float().view(len(x), -1, group)
    largest = grouped.abs().amax(-1, keepdim=True)
    inverse = torch.full_like(largest, 127).div(largest)  # 127 / largest would be rounded twice
    return ((grouped * inverse).round() * (largest / 127)).view(len(x), -1)


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return quantize.relative_error(wanted, got)


@pytest.mark.parametrize("kind", ["w4", "w8"])
def test_float16_goes_through_float32(kind):
    source, x = made(48, 128, torch.float16), made(3, 128, torch.float16, seed=1) * 50
    half, full = kernels.make(kind, source, 128), kernels.make(kind, source.float(), 128)
    half.load(source)
    full.load(source.float())
    bias = made(1, 48, torch.float16)[0]
    assert half.multiply(x, bias).dtype is torch.float16
    assert torch.equal(half.multiply(x, bias), full.multiply(x.float(), bias.float()).half())
    assert kernels.nbytes(half) == kernels.nbytes(full)
