"""Products with int8 weights in the core's arithmetic, on many positions at once (see `host.bench.core_arithmetic`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from host.bench.core_arithmetic import GUARD_BITS, TILE, Bits32, Half, Single, decoded
from hw.numerics.dot_dual import sign_magnitude
from hw.numerics.fp32_mul import fp32_mul
from hw.numerics.fp_format import FP32_NAN
from sim.functional.bit_casts import bits_to_float, float_to_bits
from sim.functional.lane_pool import for_ranges
from sim.functional.tile_sum import add_fp32, functional_njit
from sim.functional.tile_sum_int8 import align_word, int8_tile_sums

__all__ = ["int8_product"]


@functional_njit
def _align_all(
    exponents: npt.NDArray[np.int16], values: Single, bad: npt.NDArray[np.bool_], guard: int, units: Single
) -> None:
    """Scale `values` [positions, words, 64] in place; `units` [positions, words]."""
    for p in range(values.shape[0]):
        for w in range(values.shape[1]):
            if not bad[p, w]:
                units[p, w] = align_word(exponents[p, w], values[p, w], guard, values[p, w])


@functional_njit
def _pair_columns(
    aligned: Single,
    units: Single,
    bad: npt.NDArray[np.bool_],
    weights: npt.NDArray[np.uint16],
    pairs: tuple[int, int],
    initial: Single,
    scales: Bits32,
    out: Bits32,
) -> None:
    positions, words = units.shape
    totals = np.empty((positions, 2), np.float32)
    nan = bits_to_float(np.uint32(FP32_NAN))
    for n in range(pairs[0], pairs[1]):
        for p in range(positions):
            totals[p, 0], totals[p, 1] = initial[2 * n], initial[2 * n + 1]
        for w in range(words):
            tile = weights[n, w * TILE : (w + 1) * TILE]
            for p in range(positions):
                if bad[p, w]:
                    even, odd = nan, nan
                else:
                    even, odd = int8_tile_sums(TILE, aligned[p, w], tile, units[p, w])
                totals[p, 0] = add_fp32(totals[p, 0], even)
                totals[p, 1] = add_fp32(totals[p, 1], odd)
        for p in range(positions):
            for k in range(2):
                out[p, 2 * n + k] = fp32_mul(float_to_bits(totals[p, k]), scales[2 * n + k])


def int8_product(
    x: Half,
    weights: npt.NDArray[np.int8],
    scales: Single,
    initial: Single | None = None,
    guard_bits: int = GUARD_BITS,
) -> Bits32:
    """scales * (x @ weights) as the drain unit has it first: fp32 bit patterns [positions, columns].

    Parameters: `x` [positions, k] in fp16, k a multiple of 64; `weights` [k, columns], -127..127; `scales` [columns];
    `initial` [columns], what the accumulators start from (zero if not given); `guard_bits` of the tile sums, at most 6.
    """
    positions, inner = x.shape
    if inner % TILE or weights.shape[0] != inner:
        raise ValueError(f"k is {inner} for x and {weights.shape[0]} for the weights, need one multiple of {TILE}")
    columns = weights.shape[1]
    filled = -columns % 2
    bytes_ = np.pad(sign_magnitude(weights), ((0, 0), (0, filled)))
    pairs = np.ascontiguousarray(bytes_.reshape(inner, -1, 2).transpose(1, 0, 2)).view(np.dtype("<u2"))[..., 0]
    start = np.zeros(columns + filled, np.float32)
    if initial is not None:
        start[:columns] = initial
    factors = np.pad(scales.astype(np.float32), (0, filled)).view(np.uint32)
    exponents, aligned, bad = decoded(x)
    units = np.zeros(bad.shape, np.float32)
    _align_all(exponents, aligned, bad, guard_bits, units)
    out = np.empty((positions, columns + filled), np.uint32)
    for_ranges(
        lambda part: _pair_columns(aligned, units, bad, pairs, part, start, factors, out),
        len(pairs),
        positions * weights.size,
    )
    return out[:, :columns]
