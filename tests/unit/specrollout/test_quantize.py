"""Quantizers: what rounding may cost, what it must not touch, and what it must refuse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specrollout import quantize
from specrollout.quantize import Activations, dequantize, group_for, mixed_plan, relative_error, search_scaling

shapes = st.tuples(st.integers(1, 20), st.integers(1, 4), st.sampled_from(quantize.GROUPS))


def weight(seed: int, outputs: int, inputs: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * 0.02).to(dtype)


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(0, 2**31), st.sampled_from([4, 8]), st.floats(-30, 6), st.floats(-4, 4))
def test_each_weight_is_within_a_step(shape, seed, bits, magnitude, shift):
    outputs, groups, group = shape
    source = (
        torch.randn(outputs, groups * group, generator=torch.Generator().manual_seed(seed)) + shift
    ) * 2**magnitude
    made = quantize.quantize(source, bits, group)
    steps = made.scales.float().repeat_interleave(group, dim=1)
    # Half a step; where the scale was rounded down, the ends of the range lose up to 1/256 of it more, on each side.
    allowed = steps * (1.0 + (2**bits - 1) / 256)
    assert bool(((dequantize(made) - source).abs() <= allowed + 1e-12).all())
    assert int(made.codes.max()) < 2**bits


@settings(max_examples=30, deadline=None)
@given(shapes, st.integers(0, 2**31), st.sampled_from([4, 8]))
def test_zero_stays_zero(shape, seed, bits):
    outputs, groups, group = shape
    source = weight(seed, outputs, groups * group)
    source[torch.rand_like(source) < 0.3] = 0.0
    assert bool((dequantize(quantize.quantize(source, bits, group))[source == 0] == 0).all())


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5, 1e-6])
def test_a_constant_group_is_kept(value):
    source = torch.full((3, 64), value)
    torch.testing.assert_close(dequantize(quantize.quantize(source, 4, 64)), source, rtol=2**-7, atol=0)


def test_typical_errors():
    source = weight(1, 256, 1024)
    errors = {bits: relative_error(source, dequantize(quantize.quantize(source, bits, 128))) for bits in (4, 8)}
    assert 0.08 < errors[4] < 0.12
    assert 0.004 < errors[8] < 0.008
    for bits, error in errors.items():
        assert quantize.expected_error(source, bits, 128) == pytest.approx(error, rel=0.05)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused(bad):
    source = weight(2, 8, 64)
    source[5, 40] = bad
    with pytest.raises(ValueError, match="NaN or an infinity"):
        quantize.quantize(source, 4, 64)
    with pytest.raises(ValueError, match="NaN or an infinity"):
        quantize.quantize_rows(source)


def test_groups():
    assert [group_for(inputs) for inputs in (4096, 576, 96, 100)] == [128, 64, 32, None]
    assert group_for(4096, 32) == 32
    with pytest.raises(ValueError, match="not a multiple"):
        quantize.quantize(weight(3, 4, 100), 4, 64)


def test_rows():
    codes, scales = quantize.quantize_rows(weight(4, 16, 256))
    assert relative_error(weight(4, 16, 256), codes.float() * scales[:, None]) < 0.01


def activations(scale: torch.Tensor, rows: int = 200) -> Activations:
    made = Activations(len(scale))
    for part in (torch.randn(rows, len(scale), generator=torch.Generator().manual_seed(9)) * scale).split(7):
        made.add(part)
    return made


def test_scaling_lowers_the_error_where_some_inputs_are_large():
    scale = torch.ones(256)
    scale[::16] = 30.0
    found = search_scaling(weight(5, 64, 256), activations(scale), 4, 128)
    assert found is not None
    assert found.error_after < 0.8 * found.error_before
    assert 0 < found.exponent <= 1
    # What was promised is what comes out: the input divided by the scale, times the quantized weight.
    x = torch.randn(50, 256) * scale
    made = quantize.quantize(weight(5, 64, 256), 4, 128, found.scale)
    plain = quantize.Quantized(4, 128, made.codes, made.scales, made.zeros)
    torch.testing.assert_close((x / found.scale) @ dequantize(plain).T, x @ dequantize(made).T, rtol=1e-3, atol=1e-3)


def test_scaling_is_left_out_where_it_does_not_help():
    assert search_scaling(weight(6, 64, 256), Activations(256), 4, 128) is None
    found = search_scaling(weight(6, 64, 256), activations(torch.ones(256)), 4, 128)
    assert found is None or found.error_after > 0.95 * found.error_before


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_kept_rows_are_spread_and_few(sizes):
    made = Activations(2, rows=8)
    for start, size in zip([sum(sizes[:i]) for i in range(len(sizes))], sizes, strict=True):
        made.add(torch.arange(start, start + size, dtype=torch.float32)[:, None].expand(-1, 2))
    kept = made.rows[:, 0].tolist()
    assert 1 <= len(kept) <= 8
    assert kept == [kept[0] + i * ((kept[1] - kept[0]) if len(kept) > 1 else 0) for i in range(len(kept))]
    assert made.count == sum(sizes)
    assert float(made.mean[0]) == pytest.approx((sum(sizes) - 1) / 2)


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.tuples(st.floats(0, 1), st.integers(1, 99)), min_size=1))
def test_a_mixed_plan_keeps_its_budget(layers):
    errors = {name: error for name, (error, _) in layers.items()}
    sizes = {name: size for name, (_, size) in layers.items()}
    plan = mixed_plan(errors, sizes, 0.3)
    wide = {name for name, kind in plan.items() if kind == "w8"}
    assert plan.keys() == errors.keys()
    assert sum(sizes[name] for name in wide) <= 0.3 * sum(sizes.values())
    left = 0.3 * sum(sizes.values()) - sum(sizes[name] for name in wide)
    for name in errors.keys() - wide:  # it was left out for its size, or for another that is worse
        assert sizes[name] > left or any(errors[other] >= errors[name] for other in wide)
