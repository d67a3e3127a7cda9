"""The executor's fast int8 tile sums give the bits of the golden model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hw.numerics.dot_dual import dot_tile_int8
from sim.functional.tile_sum import decode_word, functional_njit
from sim.functional.tile_sum_int8 import align_word, int8_tile_sums

SEED = 20_241_201
NAN = 0x7FC00000
Halves = npt.NDArray[np.uint16]
Tile = tuple[Halves, Halves, npt.NDArray[np.bool_]]

ACTIVATIONS = np.array(
    [0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x3BFF, 0x3C00, 0xBC01, 0x7BFF, 0xFBFF, 0xFC00], np.uint16
)
WEIGHTS = np.array([0, 0x80, 1, 0x81, 0x40, 0x7F, 0xFF], np.uint16)


@functional_njit
def fast(a: Halves, pairs: Halves, take: npt.NDArray[np.bool_], guard: int) -> Any:
    """The two sums as the kernels compute them: uint32 bit patterns."""
    exponents, values = np.empty(a.size, np.int16), np.empty(a.size, np.float32)
    mask, aligned, out = np.empty(a.size, np.uint16), np.empty(a.size, np.float32), np.empty(2, np.float32)
    if decode_word(a, take, exponents, values, mask):
        return np.full(2, NAN, np.uint32)
    unit = align_word(exponents, values, guard, aligned)
    out[0], out[1] = int8_tile_sums(a.size, aligned, pairs, unit)
    return out.view(np.uint32)


def golden(a: Halves, pairs: Halves, take: npt.NDArray[np.bool_], guard: int) -> list[int]:
    return [int(dot_tile_int8(a, part.astype(np.uint8), take, guard)) for part in (pairs & 0xFF, pairs >> 8)]


def _activations(rng: np.random.Generator, width: int) -> Halves:
    bits = rng.integers(0, 1 << 16, width).astype(np.uint16)
    kind = rng.integers(0, 5)
    if kind == 0:  # anything, a NaN in most words
        return bits
    if kind == 1:  # subnormals and zeros, or the lowest two binades
        return bits & np.uint16(0x83FF if rng.random() < 0.5 else 0x87FF)
    if kind == 2:  # a few binades
        return (bits & np.uint16(0x83FF)) | (rng.integers(10, 18, width) << 10).astype(np.uint16)
    if kind == 3:  # a wide range of exponents without 31
        return (bits & np.uint16(0x83FF)) | (rng.integers(0, 31, width) << 10).astype(np.uint16)
    return rng.standard_normal(width).astype(np.float16).view(np.uint16)


def _tiles(width: int, count: int) -> list[Tile]:
    rng = np.random.default_rng(SEED + width)
    tiles = []
    for number in range(count):
        a, pairs = _activations(rng, width), rng.integers(0, 1 << 16, width).astype(np.uint16)
        if number % 5 == 0:
            pairs &= rng.choice(np.array([0x8181, 0x83FF, 0x0000], np.uint16))
        if number % 7 == 0:  # exact cancellation
            a[width // 2 :], pairs[width // 2 :] = a[: width // 2], pairs[: width // 2] ^ np.uint16(0x8080)
        tiles.append((a, pairs, rng.random(width) < rng.choice([0.0, 0.5, 0.9, 1.0, 1.0])))
    return tiles


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("guard", [4, 0, 6])
def test_random_tiles(width: int, guard: int) -> None:
    for number, (a, pairs, take) in enumerate(_tiles(width, 4000)):
        assert list(fast(a, pairs, take, guard)) == golden(a, pairs, take, guard), f"vector {number}"


@pytest.mark.parametrize("width", [16, 64])
def test_corner_tiles(width: int) -> None:
    """Every activation corner with every weight corner, among ones, zeros and tiny activations, at both ends."""
    everything = np.ones(width, np.bool_)
    for x in ACTIVATIONS:
        for y in WEIGHTS:
            for background in (0x0000, 0x3C00, 0x0001):
                a, pairs = np.full(width, background, np.uint16), np.full(width, 0x7F81, np.uint16)
                a[0], pairs[0], a[-1], pairs[-1] = x, y | 0x4200, ACTIVATIONS[-2] ^ x, y << 8
                wanted = golden(a, pairs, everything, 4)
                assert list(fast(a, pairs, everything, 4)) == wanted, (hex(x), hex(y), hex(background))


def test_largest_sums_fit() -> None:
    """64 products of the largest magnitude with the most guard bits."""
    a, pairs, take = np.full(64, 0x7BFF, np.uint16), np.full(64, 0xFF7F, np.uint16), np.ones(64, np.bool_)
    found = fast(a, pairs, take, 6).view(np.float32)
    assert list(found) == [np.float32(64 * 127 * 65504.0), -np.float32(64 * 127 * 65504.0)]


def test_nan_behind_the_mask_is_not_seen() -> None:
    a, pairs, take = np.full(16, 0x3C00, np.uint16), np.full(16, 0x0301, np.uint16), np.ones(16, np.bool_)
    a[3], take[3] = 0x7E00, False
    assert list(fast(a, pairs, take, 4).view(np.float32)) == [15.0, 45.0]
    take[3] = True
    assert list(fast(a, pairs, take, 4)) == [NAN, NAN]


def test_twin_another_guard_is_noticed() -> None:
    different = sum(list(fast(*tile, 3)) != golden(*tile, 4) for tile in _tiles(64, 300))
    assert different > 30


def test_twin_exchanged_weights_are_noticed() -> None:
    different = sum(list(fast(*tile, 4))[::-1] != golden(*tile, 4) for tile in _tiles(16, 300))
    assert different > 60


def test_twin_a_mask_off_by_one_is_noticed() -> None:
    tiles = _tiles(16, 300)
    different = sum(list(fast(a, pairs, np.roll(take, 1), 4)) != golden(a, pairs, take, 4) for a, pairs, take in tiles)
    assert different > 60
