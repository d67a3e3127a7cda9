"""int8 weights of a product: a scale for each output channel, and the parameters that go with it.

y = s*acc behind the accumulator, s the column's fp32 scale, acc the sum of activations times integers; then the drain
unit goes on as with fp16 weights. gamma is folded in before rounding. The scale is max|w| / 127: what clipping could
gain is measured in `host.bench.int8_accuracy`.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from host.compiler.product_origins import is_late, padded_columns, padded_size, without_padding
from host.compiler.shape import Shape
from host.compiler.weights import WeightSource, to_fp32

__all__ = [
    "INT8_MAX",
    "SMALLEST_SCALE",
    "Int8Weights",
    "accumulator_starts",
    "int8_product",
    "quantised",
    "scaled_sums",
]

INT8_MAX = 127
"""Largest magnitude of a weight; -128 has no sign-magnitude form."""

SMALLEST_SCALE = np.float32(2.0**-24)
"""fp16's own smallest step: a finer scale is never needed, and b / scale stays finite."""


@dataclasses.dataclass(frozen=True)
class Int8Weights:
    """What one product of one board streams in an int8 core.

    Members: `matrix`: int8 [k words * T, strips * N], -127..127, zero where padded; `scales`: fp32 [strips * N];
    `bias`: fp32 [strips * N], b' of a late LayerNorm, else b / scale, where the accumulator starts; `column_sums`: fp32
    [strips * N] of a late LayerNorm, those of scale * matrix, else None.
    """

    matrix: np.ndarray
    scales: np.ndarray
    bias: np.ndarray
    column_sums: np.ndarray | None

    def strips(self, first: int, count: int, lanes: int) -> Int8Weights:
        """Those of `count` strips from strip `first` on."""
        columns = slice(first * lanes, (first + count) * lanes)
        sums = None if self.column_sums is None else self.column_sums[columns]
        return Int8Weights(self.matrix[:, columns], self.scales[columns], self.bias[columns], sums)


def int8_product(source: WeightSource, shape: Shape, name: str, layer: int = 0) -> Int8Weights:
    """int8 weights of a board's product, named as for `WeightSource.product`.

    The head's columns are quantised as they are read; another product's gamma * W is in memory once in fp32.
    """
    size = padded_size(shape, name)
    if name == "head":
        matrix, scales = np.zeros(size, np.int8), np.full(size[1], SMALLEST_SCALE)
        of_tokens = without_padding(shape, name, matrix).T

        def take_tokens(place: slice, block: np.ndarray) -> None:
            of_tokens[place], scales[place] = quantised(block, axis=1)

        bias = source.folded_blocks(shape, name, layer, take_tokens)
    else:
        exact = np.zeros(size, np.float32)
        target = without_padding(shape, name, exact)

        def take_rows(place: slice, block: np.ndarray) -> None:
            target[place] = block.reshape(len(block), *target.shape[1:])

        bias = source.folded_blocks(shape, name, layer, take_rows)
        matrix, scales = quantised(exact)
    padded = padded_columns(shape, name, bias)
    if is_late(name):
        return Int8Weights(matrix, scales, to_fp32(padded), scaled_sums(matrix, scales))
    return Int8Weights(matrix, scales, accumulator_starts(padded, scales), None)


def quantised(weights: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(int8 matrix, fp32 scale of each output channel) of fp32 weights; the sum of a product runs along `axis`.

    Rounded to the nearest, ties to even; the largest magnitude of a channel becomes 127.
    """
    largest = np.abs(weights).max(axis=axis)
    scales = np.maximum(largest / np.float32(INT8_MAX), SMALLEST_SCALE)
    steps = weights / np.expand_dims(scales, axis)
    return np.rint(steps, out=steps).astype(np.int8), scales


def accumulator_starts(bias: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Where the accumulators of a product with biases start: b / scale, rounded once to fp32."""
    return to_fp32(bias.astype(np.float64) / scales)


def scaled_sums(matrix: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Column sums of scale * matrix, exact (46 bits in float64) and rounded once to fp32."""
    return to_fp32(matrix.sum(axis=0, dtype=np.int64) * scales.astype(np.float64))
