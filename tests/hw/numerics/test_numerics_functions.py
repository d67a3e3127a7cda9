"""GELU and exponential: RTL against golden model, and their errors against float64."""

import numpy as np
import pytest

import hw.numerics.exponential as exponential_module
import hw.numerics.gelu as gelu_module
from hw.numerics.convert import fp16_to_fp32_array, fp32_to_fp16_array
from hw.numerics.exponential import ExpNegative, exp_negative, exp_negative_array, exponential_table
from hw.numerics.gelu import Gelu, gelu, gelu_array
from hw.numerics.gelu_table import gelu_table

UNITS = {"gelu": (Gelu, gelu_array, 8), "exp": (ExpNegative, exp_negative_array, 6)}


def inputs(vectors, count=900):
    """Every fp16 number, corners of fp32, and fp32 numbers of every exponent."""
    every = fp16_to_fp32_array(np.arange(1 << 16, dtype=np.uint16))
    return np.concatenate(
        [every, vectors.fp32_corners(), vectors.stratified(np.random.default_rng(6), range(256), count)]
    )


@pytest.mark.parametrize("name", UNITS)
def test_rtl_equals_golden(name, vectors, pipeline_output):
    component, golden, latency = UNITS[name]
    x = inputs(vectors)
    assert component.latency == latency
    np.testing.assert_array_equal(pipeline_output(component(), {"x": x})["out"], golden(x))


def test_one_wrong_table_bit_is_seen(vectors, pipeline_output, monkeypatch):
    x = inputs(vectors, 100)
    bases, slopes = gelu_table()
    slopes[200] ^= 64
    monkeypatch.setattr(gelu_module, "gelu_table", lambda: (bases, slopes))
    assert (pipeline_output(Gelu(), {"x": x})["out"] != gelu_array(x)).any()
    bases, slopes = exponential_table()
    bases[77] ^= 256
    monkeypatch.setattr(exponential_module, "exponential_table", lambda: (bases, slopes))
    assert (pipeline_output(ExpNegative(), {"x": x})["out"] != exp_negative_array(x)).any()


def test_broken_tie_is_seen(vectors, pipeline_output, ties_away):
    """2**-25 and 1.5 * 2**-24 cannot be hit exactly by exp; the half-way points of its fixed-point value can."""
    x = np.concatenate([inputs(vectors), vectors.stratified(np.random.default_rng(8), range(120, 132), 100_000, (1,))])
    ties_away(exponential_module)
    assert (pipeline_output(ExpNegative(), {"x": x})["out"] != exp_negative_array(x)).any()


def unit_of_fp16(value):
    """Distance of neighbouring fp16 numbers at a float64 value."""
    return 2.0 ** (np.floor(np.log2(np.maximum(np.abs(value), 2.0**-14))) - 10)


def gelu_float64(x):
    return x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def finite_fp16(vectors):
    half = np.arange(1 << 16, dtype=np.uint16)
    return fp16_to_fp32_array(half[(half & 0x7C00) != 0x7C00])


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("stratified", "bound", "bound_above_minus_3", "bound_positive"),
    [(False, 1.079, 0.707, 0.504), (True, 1.25, 0.81, 0.507)],
    ids=["every fp16", "stratified fp32"],
)
def test_gelu_error(stratified, bound, bound_above_minus_3, bound_positive, vectors):
    x = finite_fp16(vectors)
    if stratified:
        x = vectors.stratified(np.random.default_rng(5), range(127 - 26, 127 + 15), 13_000)
        assert len(x) >= 1 << 20
    exact_x = x.view(np.float32).astype(np.float64)
    exact = gelu_float64(exact_x)
    raw = gelu_array(x)
    rounded = fp32_to_fp16_array(raw).view(np.float16).astype(np.float64)
    fits = np.abs(exact) < 65500
    error = np.where(fits, np.abs(rounded - exact) / unit_of_fp16(exact), 0)
    assert error.max() <= bound
    assert error[exact_x > -3].max() <= bound_above_minus_3
    assert error[exact_x > 0].max() <= bound_positive
    absolute = np.abs(raw.view(np.float32) - exact)
    assert absolute[np.abs(exact_x) < 8].max() <= 4.7e-6


@pytest.mark.parametrize(
    ("stratified", "bound"), [(False, 0.503), (True, 0.507)], ids=["every fp16", "stratified fp32"]
)
def test_exponential_error(stratified, bound, vectors):
    x = finite_fp16(vectors)
    x = x[x >> 31 == 1]
    if stratified:
        x = vectors.stratified(np.random.default_rng(5), range(127 - 24, 127 + 5), 37_000, (1,))
        assert len(x) >= 1 << 20
    exact = np.exp(x.view(np.float32).astype(np.float64))
    error = np.abs(exp_negative_array(x).view(np.float16) - exact) / unit_of_fp16(exact)
    assert error.max() <= bound


def test_special_values():
    one, nan, minus_zero = 0x3C00, 0x7FC00000, 0x80000000
    assert [int(exp_negative(v)) for v in (0, minus_zero, 0x3F800000, 0x80000001)] == [one] * 4
    assert int(exp_negative(nan)) == 0x7E00 and int(exp_negative(0xFF800000)) == 0x7E00
    assert int(exp_negative(0xFF7FFFFF)) == 0  # the most negative number
    assert [int(gelu(v)) for v in (0, minus_zero, nan, 0xFF800000)] == [0, minus_zero, nan, nan]
    assert int(gelu(0x41000000)) == 0x41000000 and int(gelu(0xC1000000)) == minus_zero  # 8 and -8
    assert int(gelu(0x7F7FFFFF)) == 0x7F7FFFFF
    assert int(gelu(0x33800000)) == 0x33000000  # half of a tiny number
