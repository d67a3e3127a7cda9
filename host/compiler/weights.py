"""Weights of each product as a board takes them: gamma folded in, heads padded, fp16 matrices, fp32 parameters.

A late LayerNorm is y = r*(x @ W') + (b' - r*mean*colsum) with W' = fp16(gamma*W), colsum of the rounded W' and
b' = b + beta @ W (DESIGN section 4; gpt2_core_sketch.md section 1). Column sums are exact: a sum of k fp16 values needs
at most 41 + log2(k) bits and float64 has 53.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from host.compiler.errors import Problem
from host.compiler.product_origins import (
    ORIGINS,
    is_late,
    kind_of,
    own_columns,
    padded_columns,
    padded_size,
    without_padding,
)
from host.compiler.shape import Shape
from sw.models.weights import WeightTensors

__all__ = [
    "LAYER_PRODUCTS",
    "ProductWeights",
    "WeightSource",
    "column_sums",
    "folded",
    "to_fp32",
]

LAYER_PRODUCTS = ("keys", "queries", "values", "projection", "feed_in", "feed_out")
FP16_MAX_EXCLUSIVE = 65520.0  # rounds to infinity from here on
FP32_NORMAL_MIN = 2.0**-126
FP32_MAX = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class ProductWeights:
    """What one product of one board streams.

    Members: `matrix`: fp16 [k words * T, strips * N], zero where padded; `bias`: fp32 [strips * N], b or b';
    `column_sums`: fp32 [strips * N] of a late LayerNorm, else None.
    """

    matrix: np.ndarray
    bias: np.ndarray
    column_sums: np.ndarray | None

    def strips(self, first: int, count: int, lanes: int) -> ProductWeights:
        """Those of `count` strips from strip `first` on."""
        columns = slice(first * lanes, (first + count) * lanes)
        sums = None if self.column_sums is None else self.column_sums[columns]
        return ProductWeights(self.matrix[:, columns], self.bias[columns], sums)


class WeightSource:
    """Reads one model product by product; at most one matrix and fp16 forms of its parts are in memory.

    A matrix is read once for all products that are asked for before those of another one, whichever board they are of.
    Parameters: `weights`: a checkpoint or seeded weights.
    """

    def __init__(self, weights: WeightTensors) -> None:
        self._weights = weights
        self._held: tuple[str, np.ndarray] | None = None

    @staticmethod
    def matrix_of(product: str) -> str:
        """Name of the matrix that a product comes from, within its layer."""
        return "wte" if product == "head" else ORIGINS[product].matrix

    def product(self, shape: Shape, name: str, layer: int = 0) -> ProductWeights:
        """Weights of a board's product (`LAYER_PRODUCTS`, or "head", which has no layer)."""
        matrix = np.zeros(padded_size(shape, name), np.float16)
        target = without_padding(shape, name, matrix)
        if name == "head":
            target = target.T

        def take(place: slice, block: np.ndarray) -> None:
            target[place] = block.reshape(len(block), *target.shape[1:])

        bias = padded_columns(shape, name, to_fp32(self.folded_blocks(shape, name, layer, take)))
        return ProductWeights(matrix, bias, column_sums(matrix) if is_late(name) else None)

    def folded_blocks(
        self, shape: Shape, name: str, layer: int, take: Callable[[slice, np.ndarray], None]
    ) -> np.ndarray:
        """Read what a board has of a product's weights; returns b + beta @ W of its columns in float64.

        `take` gets blocks of gamma * W in fp32, [rows, columns] of W, and the slice of rows where they belong; for the
        head, whose W is the transposed embedding, blocks [tokens, d] and the slice of tokens, counted from the board's
        first.
        """
        return self._fold(name, layer, own_columns(shape, kind_of(name)), take)

    def release(self) -> None:
        """Forget the matrix that is held."""
        self._held = None

    def embedding(self, shape: Shape, name: str, rows: int) -> np.ndarray:
        """The first `rows` rows of "wpe" or "wte" as fp16 [rows rounded up to T, strips * N], zero where padded."""
        core = shape.core
        self.release()
        table = self._weights.tensor(f"{name}.weight")[:rows]
        padded = np.zeros((-(-rows // core.tile) * core.tile, shape.x_strips * core.lanes), np.float16)
        padded[:rows, : shape.width] = table
        return padded

    def range_problems(self, int8: bool = False, progress: Callable[[int, int], None] | None = None) -> list[Problem]:
        """Values that fp16 (weights, embeddings) or fp32 (parameters) cannot hold: the worst of each tensor.

        With `int8` weights a matrix needs a scale in fp32, and a bias is divided by it, which is 2^-24 or more.

        Nothing is read if the model's own bound excludes them: gamma * W is below its square, and b + beta @ W, a sum
        of at most `MAX_WIDTH` such products and one term, far below fp32's range.
        """
        found: list[Problem] = []
        bound = self._weights.largest_magnitude
        if bound is not None and max(bound, bound * bound) < FP16_MAX_EXCLUSIVE:
            return found
        parts = list(self._parts())
        for done, (label, look) in enumerate(parts, 1):
            values, bias = look()
            of_matrix = (FP32_MAX, "fp32") if int8 and bias.seen else (FP16_MAX_EXCLUSIVE, "fp16")
            of_bias = FP32_MAX * 2.0**-24 if int8 else FP32_MAX
            for text, extremes, (limit, kind) in (("", values, of_matrix), (" (bias)", bias, (of_bias, "fp32"))):
                worst = extremes.beyond(limit)
                if worst is not None:
                    found.append(Problem(f"{label}{text}", worst, f"finite in {kind}", "scale or retrain the model"))
            if progress is not None:
                progress(done, len(parts))
        return found

    def _parts(self) -> Iterator[tuple[str, Callable[[], tuple[_Extremes, _Extremes]]]]:
        """Everything that is stored: what to call it, and a function that reads it, (values, bias)."""

        def table(name: str) -> Callable[[], tuple[_Extremes, _Extremes]]:
            return lambda: (_Extremes.of(self._weights.tensor(name)), _Extremes())

        def folded(product: str, layer: int) -> Callable[[], tuple[_Extremes, _Extremes]]:
            def look() -> tuple[_Extremes, _Extremes]:
                values = _Extremes()
                bias = self._fold(product, layer, None, lambda _, block: values.see(block))
                return values, _Extremes.of(bias)

            return look

        yield "wpe.weight", table("wpe.weight")
        yield "wte.weight", table("wte.weight")
        for layer in range(self._weights.config.n_layer):
            for product in LAYER_PRODUCTS:
                origin = ORIGINS[product]
                scale = f"h.{layer}.{origin.norm}.weight * " if origin.norm else ""
                yield f"{scale}h.{layer}.{origin.matrix}.weight [{product}]", folded(product, layer)
        yield "ln_f.weight * wte.weight [head]", folded("head", 0)

    def _fold(self, name: str, layer: int, own: range | None, take: Callable[[slice, np.ndarray], None]) -> np.ndarray:
        """Read a product's matrix; returns b + beta @ W of the columns `own`, all of them if None, in float64.

        `take` is called as by `folded_blocks`.
        """
        if name == "head":
            return self._fold_head(own, take)
        origin, width = ORIGINS[name], self._weights.config.n_embd
        block = f"h.{layer}."
        weight = self._matrix(f"{block}{origin.matrix}.weight")
        bias = self._weights.tensor(f"{block}{origin.matrix}.bias").astype(np.float64)
        if own is None:
            own = range(width if origin.kind == "heads" else weight.shape[1])
        columns = slice(origin.part * width + own.start, origin.part * width + own.stop)
        weight, bias = weight[:, columns], bias[columns]
        gamma = self._weights.tensor(f"{block}{origin.norm}.weight") if origin.norm else None
        beta = self._weights.tensor(f"{block}{origin.norm}.bias").astype(np.float64) if origin.norm else None
        if gamma is not None and beta is not None:
            return _fold_blocks(weight, gamma, beta, bias, take)
        for place in _places(weight):
            take(place, weight[place])
        return bias

    def _fold_head(self, own: range | None, take: Callable[[slice, np.ndarray], None]) -> np.ndarray:
        embedding = self._matrix("wte.weight")
        embedding = embedding if own is None else embedding[own.start : own.stop]
        gamma, beta = self._weights.tensor("ln_f.weight"), self._weights.tensor("ln_f.bias").astype(np.float64)
        bias = np.empty(len(embedding))
        for place in _places(embedding):
            tokens = embedding[place]
            bias[place] = tokens.astype(np.float64) @ beta
            take(place, tokens * gamma)
        return bias

    def _matrix(self, name: str) -> np.ndarray:
        """A matrix, not to be written to; the one read last is kept."""
        if self._held is None or self._held[0] != name:
            self._held = None  # before the next one takes memory
            self._held = name, self._weights.tensor(name)
        return self._held[1]


class _Extremes:
    """Smallest and largest of all values seen, NaN if one of them is."""

    def __init__(self) -> None:
        self._low, self._high = np.float64(0), np.float64(0)
        self.seen = False

    @classmethod
    def of(cls, values: np.ndarray) -> _Extremes:
        extremes = cls()
        extremes.see(values)
        return extremes

    def see(self, values: np.ndarray) -> None:
        self.seen = True
        self._low, self._high = np.minimum(self._low, values.min()), np.maximum(self._high, values.max())

    def beyond(self, limit: float) -> float | None:
        """The value of largest magnitude if it is not below `limit`, a NaN if there is one, else None."""
        if np.isnan(self._low):
            return float("nan")
        worst = float(self._low if -self._low > self._high else self._high)
        return worst if abs(worst) >= limit else None


def _places(array: np.ndarray) -> Iterator[slice]:
    """Slices of rows, about 2^18 elements each, so that what is made of them stays in a cache."""
    rows = max(1, (1 << 18) // array.shape[1])
    for start in range(0, len(array), rows):
        yield slice(start, min(start + rows, len(array)))


def folded(weight: np.ndarray, gamma: np.ndarray, beta: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A LayerNorm folded into the product behind it, as it is compiled: (gamma * W, b + beta @ W), both fp32.

    `weight` [width, columns] and the vectors are fp32. W' = fp16 of the first, its `column_sums` make the third part.
    """
    matrix = np.empty(weight.shape, np.float32)
    exact = _fold_blocks(weight, gamma, beta.astype(np.float64), bias.astype(np.float64), matrix.__setitem__)
    return matrix, to_fp32(exact)


def column_sums(matrix: np.ndarray) -> np.ndarray:
    """Exact sums of the columns, rounded to fp32."""
    return to_fp32(matrix.sum(axis=0, dtype=np.float64))


def _fold_blocks(
    weight: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    bias: np.ndarray,
    take: Callable[[slice, np.ndarray], None],
) -> np.ndarray:
    """b + beta @ W in float64, which `beta` and `bias` are; `take` gets gamma * W block by block."""
    for place in _places(weight):
        rows = weight[place]
        bias = bias + beta[place] @ rows.astype(np.float64)
        take(place, rows * gamma[place, None])
    return bias


def to_fp32(values: np.ndarray) -> np.ndarray:
    """Round float64 to fp32; subnormal results become zero, as in the core."""
    rounded = values.astype(np.float32)
    return np.where(np.abs(rounded) < FP32_NORMAL_MIN, np.copysign(np.float32(0), rounded), rounded)
