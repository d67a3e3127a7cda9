"""SC and AV: scores and their exponentials, and probabilities times values (docs/core.md, section 4)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hw.numerics.convert import fp32_to_fp16
from hw.numerics.exponential import exp_negative
from hw.numerics.fixed_sum import fixed_sums_limbs
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp32_max import max_tree
from hw.numerics.fp_format import FP32_NAN
from hw.numerics.reciprocal import reciprocal_fixed

from .bit_casts import bits_to_float, float_to_bits
from .drain import scaled
from .product import Operands, lane_row
from .tile_sum import add_fp32, decode_word, functional_njit, tile_sum

__all__ = ["SCORE_HEADS", "VALUE_HEADS", "slot_of", "slot_valid"]

_SIGN = np.uint32(0x80000000)


@functional_njit
def slot_of(position: int, head: int, lanes: int, rows: int) -> int:
    """Slot of a position: rotated by the head, ``rows`` for each, inside its group of ``lanes``."""
    return (position & ~(lanes - 1)) | ((position + rows * head) & (lanes - 1))


@functional_njit
def slot_valid(slot: int, head: int, lanes: int, rows: int, positions: int) -> bool:
    """True if a slot holds one of the first ``positions`` positions of a head."""
    return ((slot - rows * head) & (lanes - 1)) < positions - (slot & ~(lanes - 1))


def _score_heads(width: int) -> Callable[..., None]:
    @functional_njit
    def score_heads(
        quads: NDArray[np.uint64],
        segment: int,
        rows: NDArray[np.int64],
        head_range: tuple[int, int],
        head0: int,
        position: int,
        operands: Operands,
        new_keys: NDArray[np.uint64],
        score_scale: int,
        guard: int,
        lanes: int,
        core_rows: int,
        probabilities: NDArray[np.uint16],
        stride: int,
        inverse: NDArray[np.uint32],
    ) -> None:
        exponents, values, masks, bad = operands
        key_words = rows.shape[2]
        row_quads = np.empty(width // 4, np.uint64)
        weights = row_quads.view(np.uint16)
        slots = rows.shape[1] * lanes
        scores = np.empty(slots, np.uint32)
        valid = np.empty(slots, np.bool_)
        for j in range(head_range[0], head_range[1]):
            head = head0 + j
            newest = slot_of(position, head, lanes, core_rows)
            for slot in range(slots):
                total = np.float32(0)
                for w in range(key_words):
                    word = j * key_words + w
                    if bad[word]:
                        tile = bits_to_float(np.uint32(FP32_NAN))
                    else:
                        if slot == newest:
                            row_quads[:] = new_keys[head * key_words + w] & masks[word]
                        else:
                            row = rows[j, slot // lanes, w]
                            lane_row(quads, row, slot % lanes, segment, masks[word], row_quads)
                        tile = tile_sum(width, exponents[word], values[word], weights, guard)
                    total = add_fp32(total, tile)
                scores[slot] = scaled(float_to_bits(total), score_scale)
                valid[slot] = slot_valid(slot, head, lanes, core_rows, position + 1)
            maximum, _, _, nan = max_tree(scores, valid)
            if nan:
                maximum = np.uint32(FP32_NAN)
            out = probabilities[j * stride : j * stride + slots]
            for slot in range(slots):
                out[slot] = exp_negative(fp32_add(scores[slot], maximum ^ _SIGN)) if valid[slot] else np.uint16(0)
            total_fixed, _, _, _ = fixed_sums_limbs(out)
            inverse[head] = reciprocal_fixed(total_fixed)

    return score_heads


def _value_heads(width: int) -> Callable[..., None]:
    @functional_njit
    def value_heads(
        quads: NDArray[np.uint64],
        segment: int,
        rows: NDArray[np.int64],
        head_range: tuple[int, int],
        head0: int,
        position: int,
        probabilities: NDArray[np.uint16],
        stride: int,
        inverse: NDArray[np.uint32],
        new_values: NDArray[np.uint16],
        guard: int,
        core_rows: int,
        destination: NDArray[np.uint16],
    ) -> None:
        lanes = destination.shape[1]
        blocks = rows.shape[1]
        strips = rows.shape[2]
        row_quads = np.empty(width // 4, np.uint64)
        weights = row_quads.view(np.uint16)
        exponents = np.empty(width, np.int16)
        values = np.empty(width, np.float32)
        mask = np.empty(width, np.uint16)
        take = np.empty(width, np.bool_)
        totals = np.empty((strips, lanes), np.float32)
        for j in range(head_range[0], head_range[1]):
            head = head0 + j
            newest = slot_of(position, head, lanes, core_rows)
            totals[:] = np.float32(0)
            for b in range(blocks):
                for e in range(width):
                    take[e] = slot_valid(b * width + e, head, lanes, core_rows, position + 1)
                at = j * stride + b * width
                bad = decode_word(probabilities[at : at + width], take, exponents, values, mask)
                for s in range(strips):
                    for lane in range(lanes):
                        if bad:
                            tile = bits_to_float(np.uint32(FP32_NAN))
                        else:
                            lane_row(quads, rows[j, b, s], lane, segment, mask.view(np.uint64), row_quads)
                            if newest // width == b:
                                weights[newest % width] = new_values[head * strips + s, lane]
                            tile = tile_sum(width, exponents, values, weights, guard)
                        totals[s, lane] = add_fp32(totals[s, lane], tile)
            for s in range(strips):
                for lane in range(lanes):
                    result = scaled(float_to_bits(totals[s, lane]), inverse[head])
                    destination[j * strips + s, lane] = fp32_to_fp16(result)

    return value_heads


SCORE_HEADS = {width: _score_heads(width) for width in (16, 32, 64)}
"""SC for the heads ``head0 + head_range[0]`` to ``head0 + head_range[1] - 1``, by tile width.

Parameters
----------
quads, segment
    As in :func:`lane_row`.
rows : int64 array (heads, groups of lanes, key words)
    Row numbers of the keys.
operands : tuple
    Decoded q words, (heads * key words, ...), as in ``PRODUCT_LANES``.
new_keys : uint64 array (new key words, tile / 4)
    Keys of the current position, by absolute head.
score_scale : uint32
    fp32 bit pattern.
core_rows : int
    Rows of the core.
probabilities : uint16 array (half words,)
    Output: probability memory from the first head's first word on; heads are ``stride`` half words apart.
inverse : uint32 array (heads,)
    Output: reciprocal of each absolute head's sum.
"""

VALUE_HEADS = {width: _value_heads(width) for width in (16, 32, 64)}
"""AV for the heads ``head0 + head_range[0]`` to ``head0 + head_range[1] - 1``, by tile width.

Parameters
----------
quads, segment
    As in :func:`lane_row`.
rows : int64 array (heads, blocks of tile slots, value strips)
    Row numbers of the values.
probabilities, stride, inverse
    As ``SCORE_HEADS`` left them.
new_values : uint16 array (new value strips, lanes)
    Values of the current position, by absolute head.
core_rows : int
    Rows of the core.
destination : uint16 array (heads * value strips, lanes)
    Output strips.
"""
