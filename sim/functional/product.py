"""MM and EMB: activation words times streamed rows into accumulators, and from there through the drain unit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hw.gpt2.isa import Params, Path
from hw.numerics.convert import fp32_to_fp16
from hw.numerics.fp_format import FP32_NAN

from .bit_casts import bits_to_float, float_to_bits
from .drain import drain
from .tile_sum import add_fp32, decode_word, functional_njit, tile_sum

__all__ = ["PRODUCT_LANES", "Operands", "decode_words", "lane_row", "take_params"]

Operands = tuple[NDArray[np.int16], NDArray[np.float32], NDArray[np.uint64], NDArray[np.bool_]]
"""Decoded words: exponents and values (words, tile), masks (words, tile / 4), NaN seen (words,)."""

_BIAS = int(Params.BIAS)
_NORM = int(Params.NORM)
_LOGITS = int(Path.LOGITS)
_RESIDUAL = int(Path.RESIDUAL)


@functional_njit
def decode_words(
    halves: NDArray[np.uint16],
    take: NDArray[np.bool_],
    exponents: NDArray[np.int16],
    values: NDArray[np.float32],
    masks: NDArray[np.uint16],
    bad: NDArray[np.bool_],
) -> None:
    """:func:`decode_word` over arrays (words, tile); ``bad`` (bool, words) tells which words hold a NaN."""
    for i in range(halves.shape[0]):
        bad[i] = decode_word(halves[i], take[i], exponents[i], values[i], masks[i])


@functional_njit
def lane_row(
    quads: NDArray[np.uint64], row: int, lane: int, segment: int, mask: NDArray[np.uint64], out: NDArray[np.uint64]
) -> None:
    """Copy what a lane holds of a row.

    Parameters
    ----------
    quads : uint64 array (channels, any)
        Memory, four half words an element.
    segment : int
        Elements of a row in one channel.
    mask, out : uint64 array (tile / 4,)
        What is copied is ANDed with ``mask``, so half words that take no part become zeros.
    """
    start = np.uint64(row * segment)
    for j in range(out.size // segment):
        channel, first = np.uint64(lane * (out.size // segment) + j), np.uint64(j * segment)
        for e in range(np.uint64(segment)):
            out[first + e] = quads[channel, start + e] & mask[first + e]


@functional_njit
def take_params(
    quads: NDArray[np.uint64], row: int, lane: int, segment: int, target: NDArray[np.uint32], first: int
) -> None:
    """Store a parameter row's fp32 values of one lane at ``first``, ... modulo the depth; subnormals become zeros."""
    row_quads = np.empty(quads.shape[0] // target.shape[1] * segment, np.uint64)
    lane_row(quads, row, lane, segment, np.full(row_quads.size, 0xFFFFFFFFFFFFFFFF, np.uint64), row_quads)
    values = row_quads.view(np.uint32)
    for k in range(values.size):
        bits = values[k]
        if bits & np.uint32(0x7F800000) == 0:
            bits &= np.uint32(0x80000000)
        target[(first + k) % target.shape[0], lane] = bits


def _product_lanes(width: int) -> Callable[..., None]:
    param_strips = width // 2

    @functional_njit
    def product_lanes(
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
        row_quads = np.empty(width // 4, np.uint64)
        weights = row_quads.view(np.uint16)
        at = 0
        for g0 in range(0, strips, group):
            for i in range(words):
                word_exponents, word_values, mask = exponents[i], values[i], masks[i]
                for s in range(g0, min(g0 + group, strips)):
                    if first and i == 0 and params and s % param_strips == 0:
                        for lane in range(lane_range[0], lane_range[1]):
                            take_params(quads, rows[at], lane, segment, biases, acc + s)
                            if params == _NORM:
                                take_params(quads, rows[at + 1], lane, segment, column_sums, acc + s)
                        at += 2 if params == _NORM else 1
                    slot, param = acc + s - (0 if split else g0), (acc + s) % param_depth
                    for lane in range(lane_range[0], lane_range[1]):
                        if i > 0 or not first:
                            before = bits_to_float(accumulators[slot, lane])
                        elif params == _BIAS:
                            before = bits_to_float(biases[param, lane])
                        else:
                            before = np.float32(0)
                        if bad[i]:
                            tile = bits_to_float(np.uint32(FP32_NAN))
                        else:
                            lane_row(quads, rows[at], lane, segment, mask, row_quads)
                            tile = tile_sum(width, word_exponents, word_values, weights, guard)
                        accumulators[slot, lane] = float_to_bits(add_fp32(before, tile))
                    at += 1
                    if not (last and i == words - 1):
                        continue
                    for lane in range(lane_range[0], lane_range[1]):
                        old = strip_memory[dst + s, lane] if path == _RESIDUAL else np.uint16(0)
                        result = drain(
                            accumulators[slot, lane],
                            path,
                            params,
                            biases[param, lane],
                            column_sums[param, lane],
                            norm[0],
                            norm[1],
                            old,
                        )
                        if path == _LOGITS:
                            logits[s, lane] = result
                        else:
                            strip_memory[dst + s, lane] = fp32_to_fp16(result)

    return product_lanes


PRODUCT_LANES = {width: _product_lanes(width) for width in (16, 32, 64)}
"""One MM or EMB for some lanes, by tile width; lanes do not touch each other's data.

Parameters
----------
quads, segment
    As in :func:`lane_row`.
rows : int64 array
    Row numbers in the order of the stream.
lane_range : (int, int)
    First lane and the one behind the last.
operands : tuple
    ``exponents``, ``values`` (words, tile), ``masks`` as uint64 (words, tile / 4) and ``bad`` (words,) of
    :func:`decode_words`.
shape : tuple of int
    ``acc``, ``strips``, ``group``, ``dst``.
modes : tuple of int
    ``first``, ``last``, ``params``, ``path``.
guard : int
    As in :func:`tile_sum`.
norm : uint32 array (2,)
    r and r * mean.
accumulators, biases, column_sums : uint32 arrays (depth, lanes)
strip_memory : uint16 array (strip addresses, lanes)
    Destination of all paths but LOGITS.
logits : uint32 array (strips, lanes)
    Destination of LOGITS.
"""
