"""Rows of the weight stream of an int8 core: one row serves two strips (docs/int8.md, section 1).

Of lane n's T half words of a row, half word k holds element k's weights of column n of the strips s (low byte) and
s + 1 (high byte), s even within the product; each byte has the sign in bit 7 and the magnitude in bits 6:0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from host.compiler.int8_weights import Int8Weights
from host.compiler.stream_order import ordered_rows
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Instruction, Params
from hw.numerics.dot_dual import sign_magnitude

__all__ = ["int8_product_rows"]


def int8_product_rows(
    instruction: Instruction, weights: Int8Weights, first_word: int, core: CoreConfig
) -> Iterator[np.ndarray]:
    """Stream rows of one MM, 16-bit words [rows, N, T]; `hw.gpt2.access.weight_rows` says how many.

    `weights` are those of the run's strips, `first_word` is the run's first k word within them. Raises ValueError, when
    iterated, for an odd number of strips or an odd group.
    """
    tile, lanes, words = core.tile, core.lanes, instruction.words
    matrix = weights.matrix[first_word * tile : (first_word + words) * tile]

    def tiles(first: int, end: int) -> np.ndarray:
        columns = sign_magnitude(matrix[:, first * lanes : end * lanes])
        pairs = columns.reshape(words, tile, -1, core.mm_strips, lanes)
        rows = np.ascontiguousarray(pairs.transpose(0, 2, 4, 1, 3))  # [words, pairs, N, T, 2]
        return rows.view(np.dtype("<u2"))[..., 0]

    params = _param_rows(weights, instruction.params, core) if instruction.first else None
    return ordered_rows(instruction, tiles, params, core)


def _param_rows(weights: Int8Weights, params: int, core: CoreConfig) -> np.ndarray:
    """Parameter rows [blocks of T/2 strips, kinds, N, T] as 16-bit words.

    The kinds are the scales; with BIAS where accumulators start; with NORM b' and column sums.
    """
    sums = np.zeros_like(weights.bias) if weights.column_sums is None else weights.column_sums
    kinds = (weights.scales, weights.bias, sums)[: {Params.NONE: 1, Params.BIAS: 2, Params.NORM: 3}[Params(params)]]
    strips, block = len(weights.scales) // core.lanes, core.param_strips
    padded = np.zeros((-(-strips // block) * block, len(kinds), core.lanes), np.float32)
    for kind, values in enumerate(kinds):
        padded[:strips, kind] = values.reshape(strips, core.lanes)
    rows = np.ascontiguousarray(padded.reshape(-1, block, len(kinds), core.lanes).transpose(0, 2, 3, 1))
    return rows.view(np.uint16)
