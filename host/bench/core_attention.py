"""Attention in the core's arithmetic, with the softmax's division behind the product with the values or before it.

Same units and bits as `host.bench.core_arithmetic`. Where a position's key and value lie in memory (slots rotated by
head) plays no part: sums inside a tile are exact, and a tile holds the same positions either way.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt

from host.bench.core_arithmetic import GUARD_BITS, TILE, Bits32, Half, Single, decoded
from hw.numerics.convert import fp16_to_fp32, fp32_to_fp16
from hw.numerics.exponential import exp_negative
from hw.numerics.fixed_sum import fixed_sums_limbs
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp32_max import max_tree
from hw.numerics.fp_format import FP32_ONE
from hw.numerics.reciprocal import reciprocal_fixed
from sim.functional.bit_casts import bits_to_float, float_to_bits
from sim.functional.drain import scaled
from sim.functional.lane_pool import for_ranges
from sim.functional.tile_sum import add_fp32, decode_word, functional_njit, tile_sum

__all__ = ["Softmax", "attention"]

_SIGN = np.uint32(0x80000000)


class Softmax(enum.IntEnum):
    """Where a softmax divides.

    LATE: fp16 exponentials times values, then times 1/sum (the core). EARLY: the fp16 exponentials times 1/sum, rounded
    to fp16, times values: the core's units in the other order. EARLY_ONE_ROUNDING: exponential and division in float64,
    rounded to fp16 once: the best an early division could do.
    """

    LATE = 0
    EARLY = 1
    EARLY_ONE_ROUNDING = 2


_LATE = int(Softmax.LATE)
_EARLY = int(Softmax.EARLY)


@functional_njit
def _divided(scores: Bits32, valid: npt.NDArray[np.bool_], softmax: int, probabilities: npt.NDArray[np.uint16]) -> Any:
    """Write what values are multiplied with; returns the factor of the result (fp32 bit pattern)."""
    maximum, _, _, _ = max_tree(scores, valid)
    exact = 0.0
    for slot in range(valid.size):
        difference = fp32_add(scores[slot], maximum ^ _SIGN)
        probabilities[slot] = exp_negative(difference) if valid[slot] else np.uint16(0)
        if valid[slot]:
            exact += np.exp(np.float64(bits_to_float(difference)))
    fixed, _, _, _ = fixed_sums_limbs(probabilities)
    inverse = reciprocal_fixed(fixed)
    if softmax == _LATE:
        return inverse
    for slot in range(valid.size):
        if not valid[slot]:
            continue
        if softmax == _EARLY:
            quotient = scaled(fp16_to_fp32(probabilities[slot]), inverse)
        else:
            difference = fp32_add(scores[slot], maximum ^ _SIGN)
            quotient = float_to_bits(np.float32(np.exp(np.float64(bits_to_float(difference))) / exact))
        probabilities[slot] = fp32_to_fp16(quotient)
    return np.uint32(FP32_ONE)


@functional_njit
def _attention_head(
    exponents: npt.NDArray[np.int16],
    values: Single,
    attended: npt.NDArray[np.int64],
    keys: npt.NDArray[np.uint16],
    value_columns: npt.NDArray[np.uint16],
    score_scale: Any,
    softmax: int,
    guard: int,
    out: npt.NDArray[np.uint16],
) -> None:
    slots = value_columns.shape[1]
    scores, valid = np.zeros(slots, np.uint32), np.zeros(slots, np.bool_)
    probabilities = np.zeros(slots, np.uint16)
    word_exponents, word_values = np.empty(TILE, np.int16), np.empty(TILE, np.float32)
    mask = np.empty(TILE, np.uint16)
    totals = np.empty(value_columns.shape[0], np.float32)
    for p in range(attended.size):
        for slot in range(slots):
            valid[slot] = slot < attended[p]
            if valid[slot]:
                tile = tile_sum(TILE, exponents[p], values[p], keys[slot], guard)
                scores[slot] = scaled(float_to_bits(add_fp32(np.float32(0), tile)), score_scale)
        factor = _divided(scores, valid, softmax, probabilities)
        totals[:] = np.float32(0)
        for at in range(0, slots, TILE):
            decode_word(probabilities[at : at + TILE], valid[at : at + TILE], word_exponents, word_values, mask)
            for dim in range(totals.size):
                tile = tile_sum(TILE, word_exponents, word_values, value_columns[dim, at : at + TILE], guard)
                totals[dim] = add_fp32(totals[dim], tile)
        for dim in range(totals.size):
            out[p, dim] = fp32_to_fp16(scaled(float_to_bits(totals[dim]), factor))


def attention(
    queries: Half,
    keys: Half,
    values: Half,
    attended: npt.NDArray[np.int64],
    softmax: Softmax = Softmax.LATE,
    guard_bits: int = GUARD_BITS,
) -> Half:
    """Attention of every head: fp16 [heads, rows, d].

    Parameters: `queries` [heads, rows, d], d at most 64; `keys`, `values` [heads, positions, d]; `attended` [rows]: row
    i attends to the first attended[i] positions; `softmax`: where it divides.
    """
    heads, rows, size = queries.shape
    if size > TILE:
        raise ValueError(f"heads have {size} dimensions, this arithmetic has {TILE} at most: one tile a head")
    padding = -keys.shape[1] % TILE
    columns = np.ascontiguousarray(np.pad(values, ((0, 0), (0, padding), (0, 0))).transpose(0, 2, 1)).view(np.uint16)
    to_tile = ((0, 0), (0, 0), (0, TILE - size))  # zero products change no sum
    stored, asking = np.pad(keys, to_tile).view(np.uint16), np.pad(queries, to_tile)
    scale = np.float32(size**-0.5).view(np.uint32)
    out = np.empty((heads, rows, size), np.uint16)

    def work(part: tuple[int, int]) -> None:
        for head in range(*part):
            exponents, elements, _ = decoded(asking[head])
            _attention_head(
                exponents[:, 0],
                elements[:, 0],
                attended,
                stored[head],
                columns[head],
                scale,
                int(softmax),
                guard_bits,
                out[head],
            )

    for_ranges(work, heads, 2 * heads * rows * keys.shape[1] * size)
    return out.view(np.float16)
