"""fp32 addition, product, conversion and maximum: RTL against golden, golden against SoftFloat and NumPy."""

import gc

import numpy as np
import pytest
import softfloatpy
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

import hw.numerics.convert as convert_module
import hw.numerics.fp32_add as add_module
import hw.numerics.fp32_mul as mul_module
from hw.numerics.convert import (
    Fp32ToFp16,
    fp16_to_fp32,
    fp16_to_fp32_array,
    fp16_to_fp32_expr,
    fp32_to_fp16,
    fp32_to_fp16_array,
)
from hw.numerics.fp32_add import Fp32Add, fp32_add, fp32_add_array
from hw.numerics.fp32_max import MaxTree, fp32_less, fp32_less_expr, max_tree
from hw.numerics.fp32_mul import Fp32Mul, fp32_mul, fp32_mul_array

FP32_NAN = 0x7FC00000
BINARY = {"add": (Fp32Add, fp32_add_array), "mul": (Fp32Mul, fp32_mul_array)}


class Combinational(wiring.Component):
    """The combinational expressions as a component."""

    half: In(16)
    a: In(32)
    b: In(32)
    wide: Out(32)
    less: Out(1)
    latency = 0

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.wide.eq(fp16_to_fp32_expr(self.half)), self.less.eq(fp32_less_expr(self.a, self.b))]
        return m


def operand_pairs(vectors, count=300_000):
    """All pairs of corners; random pairs; random pairs of similar exponents, half of them nearly cancelling."""
    rng = np.random.default_rng(2)
    corners = vectors.fp32_corners()
    a, b = (grid.ravel() for grid in np.meshgrid(corners, corners))
    ra, rb = (rng.integers(0, 1 << 32, count).astype(np.uint32) for _ in range(2))
    near = slice(0, count // 2)
    exponent = ((ra[near] >> 23) & 255).astype(np.int64) + rng.integers(-28, 29, count // 2)
    rb[near] = (rb[near] & np.uint32(0x807FFFFF)) | (np.clip(exponent, 0, 255) << 23).astype(np.uint32)
    tight = slice(0, count // 4)
    rb[tight] = (ra[tight] ^ np.uint32(1 << 31)) + rng.integers(-64, 65, count // 4).astype(np.uint32)
    return np.concatenate([a, ra]), np.concatenate([b, rb])


@pytest.mark.parametrize("operation", BINARY)
def test_rtl_equals_golden(operation, vectors, pipeline_output):
    component, golden = BINARY[operation]
    a, b = operand_pairs(vectors)
    assert component.latency == 3
    np.testing.assert_array_equal(pipeline_output(component(), {"a": a, "b": b})["out"], golden(a, b))


@pytest.mark.parametrize(("operation", "module"), [("add", add_module), ("mul", mul_module)])
def test_broken_tie_is_seen(operation, module, vectors, pipeline_output, ties_away):
    component, golden = BINARY[operation]
    ties_away(module)
    a, b = operand_pairs(vectors, 1000)
    assert (pipeline_output(component(), {"a": a, "b": b})["out"] != golden(a, b)).any()


def flushed(bits):
    """Our reading of an IEEE operand: subnormals are zero."""
    return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits


def soft(function, a, b):
    """SoftFloat's result under our rules; None where IEEE 754 and our rules differ before the result."""
    if (a >> 23) & 255 == 255 or (b >> 23) & 255 == 255:
        return FP32_NAN
    operands = [softfloatpy.Float32.from_bytes(int(flushed(v)).to_bytes(4, "big")) for v in (a, b)]
    out = int.from_bytes(function(*operands).to_bytes(), "big")
    if (out >> 23) & 255 == 255:
        return FP32_NAN
    if out & 0x7FFFFFFF == 0x00800000:  # may have been rounded up inside the subnormal grid
        return None
    return flushed(out)


@pytest.mark.parametrize(
    ("golden", "function"), [(fp32_add, softfloatpy.f32_add), (fp32_mul, softfloatpy.f32_mul)], ids=["add", "mul"]
)
def test_golden_equals_softfloat(golden, function, vectors):
    a, b = operand_pairs(vectors, 40_000)
    picked = np.concatenate([np.arange(0, len(a) - 40_000, 11), np.arange(len(a) - 40_000, len(a))])
    compared = 0
    for x, y in zip(a[picked].tolist(), b[picked].tolist(), strict=True):
        expected = soft(function, x, y)
        if expected is not None:
            assert int(golden(x, y)) == expected, (hex(x), hex(y))
            compared += 1
    assert compared > 0.98 * len(picked)


def test_golden_equals_numpy(vectors):
    """Two million pairs whose results are normal numbers."""
    rng = np.random.default_rng(3)
    a, b = (vectors.stratified(rng, range(64, 190), 8000) for _ in range(2))
    rng.shuffle(b)
    for golden, operation in ((fp32_add_array, np.add), (fp32_mul_array, np.multiply)):
        expected = operation(a.view(np.float32), b.view(np.float32)).view(np.uint32)
        normal = (expected & 0x7F800000) != 0
        np.testing.assert_array_equal(golden(a, b)[normal], expected[normal])
        assert normal.mean() > 0.99


def test_zeros_and_ends():
    zero, minus, one, small = 0, 0x80000000, 0x3F800000, 0x00800000
    assert [int(fp32_add(*p)) for p in ((zero, minus), (minus, minus), (one, one ^ minus))] == [zero, minus, zero]
    assert int(fp32_add(small | 1, small ^ minus)) == zero
    assert int(fp32_add(small, (small | 1) ^ minus)) == minus
    assert int(fp32_mul(minus, one)) == minus
    assert int(fp32_mul(0x00800000, 0xBF7FFFFF)) == minus  # 2**-126 * (1 - 2**-24): below 2**-126
    assert int(fp32_mul(0x00FFFFFF, 0x3F000000)) == zero  # (2 - 2**-23) * 2**-127 has 24 bits: no rounding up
    assert int(fp32_mul(0x20000001, 0x1FFFFFFF)) == small  # rounds up to 2**-126 with unbounded exponent
    assert int(fp32_mul(0x7F7FFFFF, 0x3F800001)) == FP32_NAN
    assert int(fp32_mul(0x7F800000, zero)) == FP32_NAN


def conversion_inputs(vectors):
    rng = np.random.default_rng(4)
    narrow = vectors.stratified(rng, range(100, 145), 2000)
    ties = fp16_to_fp32_array(np.arange(0x7BFF, dtype=np.uint16)) + np.uint32(0x1000)
    return np.concatenate([vectors.fp32_corners(), narrow, ties, rng.integers(0, 1 << 32, 200_000).astype(np.uint32)])


def test_narrowing_rtl_equals_golden(vectors, pipeline_output):
    x = conversion_inputs(vectors)
    assert Fp32ToFp16.latency == 1
    np.testing.assert_array_equal(pipeline_output(Fp32ToFp16(), {"x": x})["out"], fp32_to_fp16_array(x))


def test_narrowing_broken_tie_is_seen(vectors, pipeline_output, ties_away):
    x = conversion_inputs(vectors)
    ties_away(convert_module)
    assert (pipeline_output(Fp32ToFp16(), {"x": x})["out"] != fp32_to_fp16_array(x)).any()


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_narrowing_golden_equals_softfloat_and_numpy(vectors):
    x = conversion_inputs(vectors)
    expected = x.view(np.float32).astype(np.float16).view(np.uint16)
    expected[(expected & 0x7C00) == 0x7C00] = 0x7E00
    np.testing.assert_array_equal(fp32_to_fp16_array(x), expected)
    for bits in x[::40].tolist():
        out = softfloatpy.f32_to_f16(softfloatpy.Float32.from_bytes(bits.to_bytes(4, "big")))
        half = int.from_bytes(out.to_bytes(), "big")
        assert int(fp32_to_fp16(bits)) == (0x7E00 if half & 0x7C00 == 0x7C00 else half)


def test_widening_and_order(vectors, pipeline_output):
    half = np.arange(1 << 16, dtype=np.uint16)
    corners = vectors.fp32_corners()
    a, b = (grid.ravel() for grid in np.meshgrid(corners, corners))
    a, b = np.resize(a, 1 << 20), np.resize(b, 1 << 20)
    out = pipeline_output(Combinational(), {"half": np.resize(half, 1 << 20), "a": a, "b": b})
    wide = fp16_to_fp32_array(half)
    np.testing.assert_array_equal(out["wide"], np.resize(wide, 1 << 20))
    finite = (half & 0x7C00) != 0x7C00
    np.testing.assert_array_equal(wide[finite].view(np.float32), half[finite].view(np.float16).astype(np.float32))
    assert (wide[~finite] == FP32_NAN).all() and int(fp16_to_fp32(0x8001)) == 0xB3800000
    less = np.array([fp32_less(x, y) for x, y in zip(a[:60_000].tolist(), b[:60_000].tolist(), strict=True)])
    np.testing.assert_array_equal(out["less"][:60_000].astype(bool), less)
    fa, fb = (np.where((v & 0x7F800000) == 0, 0, v).astype(np.uint32).view(np.float32)[:60_000] for v in (a, b))
    plain = np.isfinite(fa) & np.isfinite(fb)
    np.testing.assert_array_equal(less[plain], (fa < fb)[plain])


@pytest.mark.parametrize("width", [2, 5, 16])
def test_maximum_rtl_equals_golden(width, vectors, pipeline_output):
    rng = np.random.default_rng(width)
    few = np.array(
        [0, 0x80000000, 1, 0x80000001, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x80800000], np.uint32
    )
    x = np.concatenate(
        [
            rng.choice(few, (15_000, width)),
            rng.choice(vectors.fp32_corners(), (10_000, width)),
            rng.integers(0, 1 << 32, (5_000, width)).astype(np.uint32),
        ]
    )
    mask = rng.integers(0, 3, x.shape) > 0
    mask[::50] = False
    assert MaxTree.latency == 2
    out = pipeline_output(MaxTree(width), {"x": x, "mask": vectors.packed(mask)})
    expected = [max_tree(*row) for row in zip(x, mask, strict=True)]
    for place, name in enumerate(("value", "index", "any_valid", "any_nan")):
        np.testing.assert_array_equal(out[name].astype(np.int64), [int(row[place]) for row in expected], err_msg=name)
    # the mutation twin: the highest lane that has the maximum
    backwards = [max_tree(row[::-1], live[::-1]) for row, live in zip(x, mask, strict=True)]
    assert (out["index"].astype(np.int64) != [width - 1 - row[1] for row in backwards]).any()


def test_maximum_golden_equals_numpy():
    rng = np.random.default_rng(9)
    x = rng.integers(-3, 3, (2000, 16)).astype(np.float32)
    for row in x:
        value, index, valid, nan = max_tree(row.view(np.uint32), np.ones(16, bool))
        assert (float(np.uint32(value).view(np.float32)), index, valid, nan) == (row.max(), row.argmax(), True, False)


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_constructor_errors():
    with pytest.raises(ValueError, match=r"2\.\.64, got 65"):
        MaxTree(65)
    with pytest.raises(ValueError, match="16 bits, got 32"):
        fp16_to_fp32_expr(Signal(32))
    with pytest.raises(ValueError, match="32 bits, got 16"):
        fp32_less_expr(Signal(16), Signal(32))
    gc.collect()  # amaranth warns of the unfinished component here, where the warning is filtered
