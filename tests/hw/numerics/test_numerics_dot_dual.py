"""The dual dot tile: RTL against golden models in both modes, the golden model against exact fractions, and faults."""

import gc
from fractions import Fraction

import numba
import numpy as np
import pytest

import hw.numerics.dot as dot_module
import hw.numerics.dot_dual as dual_module
from hw.numerics.dot import dot_tile
from hw.numerics.dot_dual import DualDotTile, dot_tile_int8, sign_magnitude

FP32_NAN = 0x7FC00000
WEIGHT_CORNERS = np.array([0, 0x80, 1, 0x81, 2, 0x3F, 0x40, 0xC0, 0x7E, 0xFE, 0x7F, 0xFF], np.uint8)


@numba.njit
def golden_half(a, b, mask, guard):
    out = np.empty(len(a), np.uint32)
    for i in range(len(a)):
        out[i] = dot_tile(a[i], b[i], mask[i], guard)
    return out


@numba.njit
def golden_int8(a, w, mask, guard):
    out = np.empty(len(a), np.uint32)
    for i in range(len(a)):
        out[i] = dot_tile_int8(a[i], w[i], mask[i], guard)
    return out


def vectors_of(b):
    """The even and the odd vector of weights (rows, width) that rows of 16-bit words hold."""
    return (b & 0xFF).astype(np.uint8), (b >> 8).astype(np.uint8)


def random_tiles(vectors, width, count, seed=1):
    """(a, b, mask, int8): activations half normal numbers of different scales, half all exponents alike; weights all
    bytes alike, some rows small or zero; both modes in turn without order; masks; some NaN, also under the mask."""
    rng = np.random.default_rng(seed)
    half = count // 2
    normal = rng.standard_normal((half, width)) * 2.0 ** rng.integers(-12, 4, (half, 1))
    a = np.concatenate([normal.astype(np.float16).view(np.uint16), vectors.random_fp16(rng, (count - half, width))])
    b = rng.integers(0, 1 << 16, (count, width)).astype(np.uint16)
    small = rng.random((count, width)) < rng.choice([0.0, 0.3, 0.95], (count, 1))
    b[small] &= 0x8181
    int8 = rng.integers(0, 2, count) != 0
    b[~int8] = vectors.random_fp16(rng, (int((~int8).sum()), width))
    mask = rng.integers(0, 8, (count, width)) != 0
    mask[rng.random(count) < 0.25] = True
    sick = rng.integers(0, count, count // 50)
    a[sick, rng.integers(0, width, len(sick))] |= 0x7C00
    shuffled = rng.permutation(count)
    return a[shuffled], b[shuffled], mask[shuffled], int8[shuffled]


def corner_tiles(vectors, width):
    """Every corner of activations times every corner of weights in one element, among zeros, tiny activations,
    cancelling pairs and ones; the odd weight is another corner. All in int8 mode, with and without the element."""
    pairs = [grid.ravel() for grid in np.meshgrid(vectors.fp16_corners(), WEIGHT_CORNERS)]
    activation, even = pairs[0], pairs[1].astype(np.uint16)
    weight = even | np.roll(even, 5) << 8
    parts = []
    for others in ("zero", "tiny", "cancel", "ones"):
        a, b = (np.zeros((len(activation), width), np.uint16) for _ in range(2))
        if others == "tiny":
            a[:], b[:] = 0x0001, 0x81FF
        if others == "ones":
            a[:], b[:] = 0x3C01, 0x7F80
        a[:, width // 2], b[:, width // 2] = activation, weight
        if others == "cancel":
            a[:, 0], b[:, 0] = activation ^ 0x8000, weight
        parts.append((a, b))
    a, b = (np.tile(np.concatenate(part), (2, 1)) for part in zip(*parts, strict=True))
    mask = np.ones(a.shape, bool)
    mask[len(a) // 2 :, width // 2] = False
    return a, b, mask, np.ones(len(a), bool)


def expected(a, b, mask, int8, guard):
    """(sum, odd): what both golden models say; odd is 0 in fp16 mode, where nobody may look."""
    even_weights, odd_weights = vectors_of(b)
    even = np.where(int8, golden_int8(a, even_weights, mask, guard), golden_half(a, b, mask, guard))
    return even, np.where(int8, golden_int8(a, odd_weights, mask, guard), 0)


def rtl(pipeline_output, vectors, component, a, b, mask, int8):
    out = pipeline_output(component, {"a": a, "b": b, "mask": vectors.packed(mask), "int8": int8})
    return out["sum"], np.where(int8, out["odd"], 0)


def differs(found, wanted):
    """(in the first sum, in the second): whether any row differs."""
    return tuple(bool((one != other).any()) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("width", "count"), [(4, 60_000), (16, 60_000), (64, 40_000)])
def test_rtl_equals_golden_in_both_modes(width, count, vectors, pipeline_output):
    tiles = [random_tiles(vectors, width, count), corner_tiles(vectors, width)]
    tile = tuple(np.concatenate(part) for part in zip(*tiles, strict=True))
    component = DualDotTile(width)
    assert component.latency == {4: 7, 16: 9, 64: 11}[width]
    wanted = expected(*tile, 4)
    assert differs(rtl(pipeline_output, vectors, component, *tile), wanted) == (False, False)
    for values in (wanted[0], wanted[1][tile[3]]):
        assert (values == FP32_NAN).any() and (values == 0).any()
        assert len(np.unique(values)) > count // 10


@pytest.mark.parametrize("guard", [0, 10])
def test_other_guards(guard, vectors, pipeline_output):
    tile = random_tiles(vectors, 8, 10_000)
    found = rtl(pipeline_output, vectors, DualDotTile(8, guard), *tile)
    assert differs(found, expected(*tile, guard)) == (False, False)


def test_twin_three_guard_bits_are_seen(vectors, pipeline_output):
    tile = random_tiles(vectors, 4, 10_000)
    assert differs(rtl(pipeline_output, vectors, DualDotTile(4, guard=3), *tile), expected(*tile, 4)) == (True, True)


def test_twin_another_integer_exponent_is_seen(vectors, pipeline_output, monkeypatch):
    tile = random_tiles(vectors, 4, 2_000)
    wanted = expected(*tile, 4)
    monkeypatch.setattr(dual_module, "_INTEGER_EXPONENT", 24)
    assert differs(rtl(pipeline_output, vectors, DualDotTile(4), *tile), wanted) == (True, True)


def test_twin_a_mode_one_cycle_early_is_seen(vectors, pipeline_output):
    a, b, mask, int8 = random_tiles(vectors, 4, 2_000)
    found = rtl(pipeline_output, vectors, DualDotTile(4), a, b, mask, np.roll(int8, -1))
    assert differs(found, expected(a, b, mask, int8, 4)) == (True, True)


def test_twin_broken_tie_is_seen(vectors, pipeline_output, ties_away):
    """64 * 2**15 + 2**-3: half a unit of the last place, to even is downwards."""
    a, b = np.zeros((4, 4), np.uint16), np.zeros((4, 4), np.uint16)
    a[:, :2] = np.array([2.0**15, 2.0**-3], np.float16).view(np.uint16)
    b[:, 0], b[:, 1] = 0x4040, 0x0101
    tile = a, b, np.ones(a.shape, bool), np.ones(4, bool)
    guard = 10
    wanted = expected(*tile, guard)
    assert (wanted[0].view(np.float32) == 2.0**21).all()
    assert differs(rtl(pipeline_output, vectors, DualDotTile(4, guard), *tile), wanted) == (False, False)
    ties_away(dot_module)
    assert differs(rtl(pipeline_output, vectors, DualDotTile(4, guard), *tile), wanted) == (True, True)


def test_mask_hides_everything(vectors, pipeline_output):
    a, b, _, int8 = corner_tiles(vectors, 4)
    found = rtl(pipeline_output, vectors, DualDotTile(4), a, b, np.zeros(a.shape, bool), int8)
    assert not found[0].any() and not found[1].any()


# The golden model of int8 mode.


def exact_sum(a, w, mask, guard, *, zero_weights_count=True):
    """The definition of the format in exact fractions, written independently of the golden model."""
    values = []
    for x, y, live in zip(a, w, mask, strict=True):
        if not live:
            continue
        if x & 0x7C00 == 0x7C00:
            return FP32_NAN
        weight = -int(y & 0x7F) if y & 0x80 else int(y)
        activation = Fraction(float(np.uint16(x).view(np.float16)))
        if activation and (weight or zero_weights_count):
            values.append((activation * weight, max(int(x) >> 10 & 31, 1) - 15))
    if not values:
        return 0
    unit = Fraction(2) ** (max(exponent for _, exponent in values) - 10 - guard)
    total = sum((int(value / unit) for value, _ in values), 0) * unit  # int() truncates towards zero
    # at most 34 bits: exact in float64, and rounded once by the conversion to float32
    return int(np.float32(float(total)).view(np.uint32)) if total else 0


def small_set(vectors, width):
    """(a, even weights, mask) of some random and corner tiles."""
    tiles = [random_tiles(vectors, width, 600, seed=3)]
    tiles.append(tuple(part[:: 1 if width == 4 else 7] for part in corner_tiles(vectors, width)))
    a, b, mask, _ = (np.concatenate(part) for part in zip(*tiles, strict=True))
    return a, vectors_of(b)[0], mask


@pytest.mark.parametrize(("width", "guard"), [(4, 4), (16, 4), (64, 4), (16, 0), (16, 10)])
def test_golden_is_the_definition(width, guard, vectors):
    a, w, mask = small_set(vectors, width)
    wanted = np.array([exact_sum(*row, guard) for row in zip(a, w, mask, strict=True)], np.uint32)
    np.testing.assert_array_equal(golden_int8(a, w, mask, guard), wanted)
    whole = np.array([dot_tile_int8(x, y, None, guard) for x, y in zip(a[:50], w[:50], strict=True)])
    np.testing.assert_array_equal(whole, golden_int8(a[:50], w[:50], np.ones_like(mask[:50]), guard))


def test_twin_alignment_to_the_products_that_are_not_zero_is_seen(vectors):
    a, w, mask = small_set(vectors, 16)
    other = [exact_sum(*row, 4, zero_weights_count=False) for row in zip(a, w, mask, strict=True)]
    assert (golden_int8(a, w, mask, 4) != np.array(other, np.uint32)).sum() > 20


def test_sums_without_shifts_are_exact():
    """Activations of one binade, and of `guard` binades: the sum is that of the integers."""
    rng = np.random.default_rng(7)
    for binades in (1, 5):
        scale = 2.0 ** rng.integers(0, binades, (2_000, 64))
        a = (rng.integers(1024, 2048, (2_000, 64)) / 1024 * scale * rng.choice([-1, 1], (2_000, 64))).astype(np.float16)
        w = rng.integers(-127, 128, (2_000, 64)).astype(np.int8)
        exact = (a.astype(np.float64) * w).sum(axis=1).astype(np.float32)
        found = golden_int8(a.view(np.uint16), sign_magnitude(w), np.ones(a.shape, bool), 4)
        np.testing.assert_array_equal(found.view(np.float32), exact)
    low = golden_int8(a.view(np.uint16), sign_magnitude(w), np.ones(a.shape, bool), 3)
    assert (low != exact.view(np.uint32)).any()


def test_error_on_normal_activations():
    """The figures in the docstring of `DualDotTile`."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal((50_000, 64)).astype(np.float16)
    w = rng.integers(-127, 128, a.shape).astype(np.int8)
    out = golden_int8(a.view(np.uint16), sign_magnitude(w), np.ones(a.shape, bool), 4).view(np.float32)
    products = a.astype(np.float64) * w
    error = (out - products.sum(axis=1)) / np.abs(products).sum(axis=1)
    assert np.abs(error).max() < 2.7e-7
    assert np.sqrt((error**2).mean()) < 3.5e-8
    assert abs(error.mean()) < 2e-10


def test_sign_magnitude():
    every = np.arange(-127, 128).astype(np.int8)
    bytes_ = sign_magnitude(every)
    assert np.array_equal(np.where(bytes_ & 0x80, -1, 1) * (bytes_ & 0x7F).astype(int), every)
    assert sign_magnitude(np.zeros(1, np.int8)) == 0
    with pytest.raises(ValueError, match="got -128"):
        sign_magnitude(np.array([0, -128], np.int8))
    with pytest.raises(ValueError, match="must be int8, got int16"):
        sign_magnitude(np.zeros(2, np.int16))


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_constructor_errors():
    with pytest.raises(ValueError, match="got 48"):
        DualDotTile(48)
    with pytest.raises(ValueError, match=r"guard must be an integer 0\.\.10, got 11"):
        DualDotTile(16, guard=11)
    gc.collect()  # amaranth warns of the unfinished components here, where the warning is filtered
