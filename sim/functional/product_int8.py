"""MM with int8 weights: rows that serve two strips, sums that are scaled before the drain unit (docs/int8.md)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hw.gpt2.isa import Params, Path
from hw.numerics.convert import fp32_to_fp16
from hw.numerics.fp32_mul import fp32_mul
from hw.numerics.fp_format import FP32_NAN

from .bit_casts import bits_to_float, float_to_bits
from .drain import drain
from .product import Operands, lane_row, take_params
from .tile_sum import add_fp32, functional_njit
from .tile_sum_int8 import align_word, int8_tile_sums

__all__ = ["INT8_PRODUCT_LANES"]

_NONE = int(Params.NONE)
_BIAS = int(Params.BIAS)
_NORM = int(Params.NORM)
_LOGITS = int(Path.LOGITS)
_RESIDUAL = int(Path.RESIDUAL)


def _int8_product_lanes(width: int) -> Callable[..., None]:
    param_strips = width // 2

    @functional_njit
    def int8_product_lanes(
        quads: NDArray[np.uint64],
        segment: int,
        rows: NDArray[np.int64],
        lane_range: tuple[int, int],
        operands: Operands,
        shape: tuple[int, int, int, int],
        modes: tuple[int, int, int, int],
        guard: int,
        norm: NDArray[np.uint32],
        accumulators: NDArray[np.uint32],
        scales: NDArray[np.uint32],
        biases: NDArray[np.uint32],
        column_sums: NDArray[np.uint32],
        strip_memory: NDArray[np.uint16],
        logits: NDArray[np.uint32],
    ) -> None:
        exponents, values, masks, bad = operands
        acc, strips, group, dst = shape
        first, last, params, path = modes
        words = bad.size
        param_depth = biases.shape[0]
        split = not (first and last)
        aligned, units = np.empty((words, width), np.float32), np.empty(words, np.float32)
        for i in range(words):
            if not bad[i]:
                units[i] = align_word(exponents[i], values[i], guard, aligned[i])
        row_quads = np.empty(width // 4, np.uint64)
        weights = row_quads.view(np.uint16)
        at = 0
        for g0 in range(0, strips, group):
            for i in range(words):
                word, unit, mask = aligned[i], units[i], masks[i]
                for s in range(g0, min(g0 + group, strips), 2):
                    if first and i == 0 and s % param_strips == 0:
                        for lane in range(lane_range[0], lane_range[1]):
                            take_params(quads, rows[at], lane, segment, scales, acc + s)
                            if params != _NONE:
                                take_params(quads, rows[at + 1], lane, segment, biases, acc + s)
                            if params == _NORM:
                                take_params(quads, rows[at + 2], lane, segment, column_sums, acc + s)
                        at += 1 + (0 if params == _NONE else 2 if params == _NORM else 1)
                    for lane in range(lane_range[0], lane_range[1]):
                        if bad[i]:
                            even = bits_to_float(np.uint32(FP32_NAN))
                            odd = even
                        else:
                            lane_row(quads, rows[at], lane, segment, mask, row_quads)
                            even, odd = int8_tile_sums(width, word, weights, unit)
                        for which in range(2):
                            slot, param = acc + s + which - (0 if split else g0), (acc + s + which) % param_depth
                            if i > 0 or not first:
                                before = bits_to_float(accumulators[slot, lane])
                            elif params == _BIAS:
                                before = bits_to_float(biases[param, lane])
                            else:
                                before = np.float32(0)
                            tile = odd if which else even
                            total = float_to_bits(add_fp32(before, tile))
                            accumulators[slot, lane] = total
                            if not (last and i == words - 1):
                                continue
                            old = strip_memory[dst + s + which, lane] if path == _RESIDUAL else np.uint16(0)
                            result = drain(
                                fp32_mul(total, scales[param, lane]),
                                path,
                                params,
                                biases[param, lane],
                                column_sums[param, lane],
                                norm[0],
                                norm[1],
                                old,
                            )
                            if path == _LOGITS:
                                logits[s + which, lane] = result
                            else:
                                strip_memory[dst + s + which, lane] = fp32_to_fp16(result)
                    at += 1

    return int8_product_lanes


INT8_PRODUCT_LANES = {width: _int8_product_lanes(width) for width in (16, 32, 64)}
"""One MM with int8 weights for some lanes, by tile width; lanes do not touch each other's data.

Parameters are those of ``sim.functional.product.PRODUCT_LANES``, with ``scales``, a uint32 array (depth, lanes), before
``biases``; ``acc``, ``strips``, ``group`` and ``dst`` are even.
"""
