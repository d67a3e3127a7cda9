"""The dot tile: RTL against golden model, golden model against exact fractions, and faults that must show."""

import gc
from fractions import Fraction

import numba
import numpy as np
import pytest

import hw.numerics.dot as dot_module
from hw.numerics.dot import DotTile, dot_tile

FP32_NAN = 0x7FC00000
RANDOM_TILES = 100_000


@numba.njit
def golden(a, b, mask, guard):
    out = np.empty(len(a), np.uint32)
    for i in range(len(a)):
        out[i] = dot_tile(a[i], b[i], mask[i], guard)
    return out


def random_tiles(vectors, width, count=RANDOM_TILES, seed=1):
    """Half normal numbers of different scales, half all exponents alike; masks; some NaN, also under the mask."""
    rng = np.random.default_rng(seed)
    half = count // 2
    scale = 2.0 ** rng.integers(-12, 4, (half, 1))
    a, b = (
        np.concatenate(
            [
                (rng.standard_normal((half, width)) * scale).astype(np.float16).view(np.uint16),
                vectors.random_fp16(rng, (count - half, width)),
            ]
        )
        for _ in range(2)
    )
    mask = rng.integers(0, 8, (count, width)) != 0
    mask[: count // 4] = True
    sick = rng.integers(0, count, count // 50)
    a[sick, rng.integers(0, width, len(sick))] |= 0x7C00
    return a, b, mask


def corner_tiles(vectors, width):
    """Every pair of corners in one lane, among zeros, cancelling pairs and tiny products."""
    corners = vectors.fp16_corners()
    a_lane, b_lane = (grid.ravel() for grid in np.meshgrid(corners, corners))
    rows = []
    for others in ("zero", "tiny", "cancel", "ones"):
        a = np.zeros((len(a_lane), width), np.uint16)
        b = np.zeros((len(a_lane), width), np.uint16)
        if others == "tiny":
            a[:], b[:] = 0x0001, 0x8001
        if others == "ones":
            a[:], b[:] = 0x3C01, 0x3BFF
        a[:, width // 2], b[:, width // 2] = a_lane, b_lane
        if others == "cancel":
            a[:, 0], b[:, 0] = a_lane ^ 0x8000, b_lane
        rows.append((a, b))
    a, b = (np.concatenate(part) for part in zip(*rows, strict=True))
    mask = np.ones(a.shape, bool)
    masked = mask.copy()
    masked[:, width // 2] = False
    return np.concatenate([a, a]), np.concatenate([b, b]), np.concatenate([mask, masked])


def rtl(pipeline_output, vectors, component, a, b, mask):
    return pipeline_output(component, {"a": a, "b": b, "mask": vectors.packed(mask)})["sum"]


@pytest.mark.parametrize("width", [4, 16, 64])
def test_rtl_equals_golden(width, vectors, pipeline_output):
    tiles = [random_tiles(vectors, width), corner_tiles(vectors, width)]
    a, b, mask = (np.concatenate(part) for part in zip(*tiles, strict=True))
    component = DotTile(width)
    assert component.latency == {4: 7, 16: 9, 64: 11}[width]
    out = rtl(pipeline_output, vectors, component, a, b, mask)
    expected = golden(a, b, mask, 4)
    np.testing.assert_array_equal(out, expected)
    assert (expected == FP32_NAN).any() and (expected == 0).any()
    assert len(np.unique(expected)) > RANDOM_TILES // 4


@pytest.mark.parametrize(("width", "guard"), [(8, 0), (8, 10)])
def test_other_shapes(width, guard, vectors, pipeline_output):
    a, b, mask = random_tiles(vectors, width, 20_000)
    out = rtl(pipeline_output, vectors, DotTile(width, guard), a, b, mask)
    np.testing.assert_array_equal(out, golden(a, b, mask, guard))


def test_three_guard_bits_are_seen(vectors, pipeline_output):
    a, b, mask = random_tiles(vectors, 4, 20_000)
    assert (rtl(pipeline_output, vectors, DotTile(4, guard=3), a, b, mask) != golden(a, b, mask, 4)).any()


def test_broken_tie_is_seen(vectors, pipeline_output, ties_away):
    a, b, mask = corner_tiles(vectors, 4)
    ones = np.full((1, 4), 0x3C00, np.uint16)
    tie = np.array([[0x6800, 0x3C00, 0, 0]], np.uint16), np.array([[0x6C00, 0x2000, 0, 0]], np.uint16)
    a, b, mask = np.concatenate([a, ones, tie[0]]), np.concatenate([b, ones, tie[1]]), np.concatenate([mask, mask[:2]])
    mask[-2:] = True
    ties_away(dot_module)
    assert (rtl(pipeline_output, vectors, DotTile(4), a, b, mask) != golden(a, b, mask, 4)).any()


def test_mask_hides_everything(vectors, pipeline_output):
    a, b, _ = corner_tiles(vectors, 4)
    out = rtl(pipeline_output, vectors, DotTile(4), a, b, np.zeros(a.shape, bool))
    assert not out.any()


def exact_sum(a, b, mask, guard):
    """The definition of the format in exact fractions, written independently of the golden model."""
    values = []
    for x, y, live in zip(a, b, mask, strict=True):
        if live:
            if x & 0x7C00 == 0x7C00 or y & 0x7C00 == 0x7C00:
                return FP32_NAN
            product = [Fraction(float(np.uint16(v).view(np.float16))) for v in (x, y)]
            exponent = max(int(x) >> 10 & 31, 1) + max(int(y) >> 10 & 31, 1) - 30
            values.append((product[0] * product[1], exponent))
    nonzero = [exponent for value, exponent in values if value]
    if not nonzero:
        return 0
    unit = Fraction(2) ** (max(nonzero) - 20 - guard)
    total = sum((int(value / unit) for value, _ in values), 0) * unit  # int() truncates towards zero
    # at most 33 bits: exact in float64, and rounded once by the conversion to float32
    return int(np.float32(float(total)).view(np.uint32)) if total else 0


@pytest.mark.parametrize(("width", "guard"), [(4, 4), (16, 4), (64, 4), (16, 0), (16, 7)])
def test_golden_is_the_definition(width, guard, vectors):
    tiles = [random_tiles(vectors, width, 600, seed=3)]
    corners = corner_tiles(vectors, width)
    step = 1 if width == 4 else 13
    tiles.append(tuple(part[::step] for part in corners))
    for a, b, mask in tiles:
        expected = np.array([exact_sum(*row, guard) for row in zip(a, b, mask, strict=True)], np.uint32)
        np.testing.assert_array_equal(golden(a, b, mask, guard), expected)
        whole = np.array([dot_tile(x, y, None, guard) for x, y in zip(a[:50], b[:50], strict=True)])
        np.testing.assert_array_equal(whole, golden(a[:50], b[:50], np.ones_like(mask[:50]), guard))


def test_error_on_normal_vectors():
    """The figures in the docstring of `DotTile`."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((50_000, 64)).astype(np.float16) for _ in range(2))
    out = golden(a.view(np.uint16), b.view(np.uint16), np.ones(a.shape, bool), 4).view(np.float32)
    products = a.astype(np.float64) * b.astype(np.float64)
    error = (out - products.sum(axis=1)) / np.abs(products).sum(axis=1)
    assert np.abs(error).max() < 9.0e-8
    assert np.sqrt((error**2).mean()) < 8.2e-9
    assert abs(error.mean()) < 2e-10


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_constructor_errors():
    for width in (0, 2, 48, 128, "16"):
        with pytest.raises(ValueError, match=f"got {width!r}"):
            DotTile(width)
    with pytest.raises(ValueError, match=r"guard must be an integer 0\.\.10, got 11"):
        DotTile(16, guard=11)
    gc.collect()  # amaranth warns of the unfinished components here, where the warning is filtered
