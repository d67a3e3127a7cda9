"""The executor's fast tile sum and fp32 addition give the bits of the golden models."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hw.numerics.dot import dot_tile
from hw.numerics.fp32_add import fp32_add
from sim.functional.tile_sum import add_fp32, decode_word, functional_njit, tile_sum

SEED = 20_240_517
Halves = npt.NDArray[np.uint16]

CORNERS = np.array(
    [0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x8400, 0x3BFF, 0x3C00, 0x3C01, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFE01],
    np.uint16,
)


@functional_njit
def fast(a, b, take, guard):
    """The sum as the kernels compute it: uint32 bit pattern."""
    exponents, values = np.empty(a.size, np.int16), np.empty(a.size, np.float32)
    mask = np.empty(a.size, np.uint16)
    out = np.empty(1, np.float32)
    if decode_word(a, take, exponents, values, mask):
        return np.uint32(0x7FC00000)
    out[0] = tile_sum(a.size, exponents, values, b & mask, guard)
    return out.view(np.uint32)[0]


@functional_njit
def add(a, b):
    """``add_fp32`` on bit patterns."""
    pair = np.array([a, b], np.uint32).view(np.float32)
    out = np.empty(1, np.float32)
    out[0] = add_fp32(pair[0], pair[1])
    return out.view(np.uint32)[0]


def _random_halves(rng: np.random.Generator, width: int, kind: int) -> Halves:
    bits = rng.integers(0, 1 << 16, width).astype(np.uint16)
    if kind == 0:  # anything, a NaN in most words
        return bits
    if kind == 1:  # subnormals and zeros
        return bits & np.uint16(0x83FF) if rng.random() < 0.5 else bits & np.uint16(0x87FF)
    if kind == 2:  # products of similar size: carries and cancellation
        return (bits & np.uint16(0x83FF)) | np.uint16(rng.integers(12, 18) << 10)
    if kind == 3:  # wide range of exponents without 31
        return (bits & np.uint16(0x83FF)) | (rng.integers(0, 31, width) << 10).astype(np.uint16)
    return (rng.standard_normal(width) * 0.02).astype(np.float16).view(np.uint16)


def _vectors(width: int, count: int) -> list[tuple[Halves, Halves, npt.NDArray[np.bool_]]]:
    rng = np.random.default_rng(SEED + width)
    vectors = []
    for number in range(count):
        a, b = (_random_halves(rng, width, int(rng.integers(0, 5))) for _ in range(2))
        if number % 7 == 0:  # exact cancellation
            half = width // 2
            a[half:], b[half:] = a[:half], b[:half] ^ np.uint16(0x8000)
        if number % 11 == 0:
            a[rng.integers(width)], b[rng.integers(width)] = rng.choice(CORNERS), rng.choice(CORNERS)
        vectors.append((a, b, rng.random(width) < rng.choice([0.0, 0.5, 0.9, 1.0, 1.0])))
    return vectors


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("guard", [4, 0, 6])
def test_random_tiles(width: int, guard: int) -> None:
    for number, (a, b, take) in enumerate(_vectors(width, 6000)):
        assert fast(a, b, take, guard) == dot_tile(a, b, take, guard), f"seed {SEED + width}, vector {number}"


@pytest.mark.parametrize("width", [16, 64])
def test_corner_tiles(width: int) -> None:
    """Every pair of corner values, among ones, among zeros and at both ends of a tile."""
    everything = np.ones(width, np.bool_)
    for x in CORNERS:
        for y in CORNERS:
            for background in (0x0000, 0x3C00, 0xB801, 0x0001):
                a, b = (np.full(width, background, np.uint16) for _ in range(2))
                a[0], b[0], a[-1], b[-1] = x, y, y, x
                assert fast(a, b, everything, 4) == dot_tile(a, b, everything, 4), (hex(x), hex(y), hex(background))


def test_nan_behind_the_mask_is_not_seen() -> None:
    a, b = (np.full(16, 0x3C00, np.uint16) for _ in range(2))
    take = np.ones(16, np.bool_)
    a[3], b[5], take[3], take[5] = 0x7E00, 0xFC00, False, False
    assert fast(a, b, take, 4) == np.float32(14).view(np.uint32)
    take[5] = True
    assert fast(a, b, take, 4) == 0x7FC00000


def test_twin_another_guard_is_noticed() -> None:
    different = sum(fast(a, b, take, 3) != dot_tile(a, b, take, 4) for a, b, take in _vectors(64, 300))
    assert different > 30


def test_twin_a_mask_off_by_one_is_noticed() -> None:
    different = sum(fast(a, b, np.roll(take, 1), 4) != dot_tile(a, b, take, 4) for a, b, take in _vectors(16, 300))
    assert different > 60


def _fp32_pairs(count: int) -> npt.NDArray[np.uint32]:
    rng = np.random.default_rng(SEED)
    pairs = rng.integers(0, 1 << 32, (count, 2), dtype=np.uint64).astype(np.uint32)
    close = rng.random(count) < 0.5
    exponents = (pairs[:, 0] >> 23 & 0xFF).astype(np.int64) + rng.integers(-26, 27, count)
    moved = (pairs[:, 1] & 0x807FFFFF) | (np.clip(exponents, 0, 255) << 23).astype(np.uint32)
    pairs[close, 1] = moved[close]
    corners = np.array([0, 1 << 31, 0x800000, 0x80800001, 0x80FFFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0x7FC00001])
    grid = np.stack(np.meshgrid(corners, corners), -1).reshape(-1, 2).astype(np.uint32)
    pairs = np.concatenate([pairs, grid])
    pairs[(pairs & 0x7F800000) == 0] &= 0x80000000  # no operand inside the core is subnormal
    return pairs


def test_addition() -> None:
    for a, b in _fp32_pairs(40_000):
        assert add(a, b) == fp32_add(a, b), f"{a:#x} + {b:#x}"


def test_twin_plain_float_addition_is_noticed() -> None:
    pairs = _fp32_pairs(2000)
    with np.errstate(over="ignore", invalid="ignore"):
        plain = (pairs[:, 0].view(np.float32) + pairs[:, 1].view(np.float32)).view(np.uint32)
    assert any(got != fp32_add(a, b) for got, (a, b) in zip(plain, pairs, strict=True))
