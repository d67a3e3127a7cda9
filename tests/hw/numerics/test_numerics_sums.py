"""Exact sums of fp16 numbers: RTL against golden model, golden model against fractions."""

import gc
from fractions import Fraction

import numpy as np
import pytest

from hw.numerics.fixed_sum import Fp16FixedSum, fixed_sums, fixed_sums_limbs

BEATS = 3000


def beats(vectors, width, seed=1):
    rng = np.random.default_rng(seed)
    x = vectors.random_fp16(rng, (BEATS, width))
    x[: BEATS // 3] = rng.choice(vectors.fp16_corners()[:15], (BEATS // 3, width))
    x[rng.integers(0, BEATS, 20), 0] = 0xFC01
    mask = rng.integers(0, 4, x.shape) > 0
    valid = rng.integers(0, 2, BEATS).astype(bool)
    first = rng.integers(0, 30, BEATS) == 0
    valid[0] = first[0] = True
    return x, mask, valid, first


def expected(x, mask, valid, first):
    """Golden sums after each beat."""
    rows, taken = [], []
    for elements, live, now, start in zip(x, mask, valid, first, strict=True):
        if now:
            taken = [elements[live]] if start else [*taken, elements[live]]
            sums = fixed_sums(np.concatenate(taken))
        rows.append(sums)
    return rows


def simulated(pipeline_output, vectors, component, x, mask, valid, first):
    out = pipeline_output(component, {"x": x, "mask": vectors.packed(mask), "valid": valid, "first": first})
    sum1 = [int(v) - ((int(v) >> 55) << 56) for v in out["sum1"]]
    sum2 = [int.from_bytes(row.tobytes(), "little") for row in out["sum2"]] if "sum2" in out else [0] * len(x)
    return list(zip(sum1, sum2, (bool(v) for v in out["nan"]), strict=True))


@pytest.mark.parametrize(("width", "squares", "latency"), [(1, True, 5), (4, False, 6), (16, True, 7)])
def test_rtl_equals_golden(width, squares, latency, vectors, pipeline_output):
    case = beats(vectors, width)
    component = Fp16FixedSum(width, squares)
    assert component.latency == latency
    rows = [(s1, s2 if squares else 0, nan) for s1, s2, nan in expected(*case)]
    assert simulated(pipeline_output, vectors, component, *case) == rows
    assert any(nan for *_, nan in rows) and not all(nan for *_, nan in rows)


def test_sums_that_are_not_cleared_are_seen(vectors, pipeline_output):
    """The same beats, of which the second `first` was lost."""
    x, mask, valid, first = beats(vectors, 4)
    second = np.flatnonzero(first & valid)[1]
    lost = first.copy()
    lost[second] = False
    assert simulated(pipeline_output, vectors, Fp16FixedSum(4), x, mask, valid, lost) != expected(x, mask, valid, first)


def test_golden_equals_fractions(vectors):
    rng = np.random.default_rng(2)
    for count in (1, 2, 15, 16, 333):
        x = vectors.random_fp16(rng, (count,))
        values = [Fraction(float(v)) for v in x.view(np.float16)]
        assert fixed_sums(x) == (sum(values) * 2**24, sum(v * v for v in values) * 2**48, False)
    assert fixed_sums(np.array([0x3C00, 0x7C00], np.uint16)) == (1 << 24, 1 << 48, True)
    assert fixed_sums(np.zeros(0, np.uint16)) == (0, 0, False)


def test_largest_sums_fit():
    x = np.full(1 << 13, 0xFBFF, np.uint16)
    sum1, sum2, nan = fixed_sums(x)
    assert (sum1, sum2, nan) == (-(2047 << 29) << 13, ((2047 << 29) ** 2) << 13, False)
    assert abs(sum1) < 1 << 55 and sum2 < 1 << 96
    _, high, low, _ = fixed_sums_limbs(x)
    assert (int(high) << 48) + int(low) == sum2 and 0 <= low < 1 << 48


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_constructor_errors():
    with pytest.raises(ValueError, match=r"integer 1\.\.64, got 0"):
        Fp16FixedSum(0)
    with pytest.raises(TypeError, match="squares must be a bool, got 1"):
        Fp16FixedSum(4, squares=1)
    gc.collect()  # amaranth warns of the unfinished components here, where the warning is filtered
