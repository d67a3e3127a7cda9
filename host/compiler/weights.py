"""Weights of each product as the core takes them: gamma folded in, heads padded, fp16 matrices, fp32 parameters.

A late LayerNorm is y = r*(x @ W') + (b' - r*mean*colsum) with W' = fp16(gamma*W), colsum of the rounded W' and
b' = b + beta @ W (DESIGN section 4; gpt2_core_sketch.md section 1). Column sums are exact: a sum of k fp16 values needs
at most 41 + log2(k) bits and float64 has 53.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from host.compiler.errors import Problem
from host.compiler.shape import Shape
from sw.models.checkpoint import Checkpoint

__all__ = ["LAYER_PRODUCTS", "ProductWeights", "WeightSource"]

LAYER_PRODUCTS = ("keys", "queries", "values", "projection", "feed_in", "feed_out")
FP16_MAX_EXCLUSIVE = 65520.0  # rounds to infinity from here on
FP32_NORMAL_MIN = 2.0**-126
FP32_MAX = float(np.finfo(np.float32).max)

# product -> (matrix, LayerNorm or "", first column as a multiple of d or None for all columns)
_SOURCES: dict[str, tuple[str, str, int | None]] = {
    "queries": ("attn.c_attn", "ln_1", 0),
    "keys": ("attn.c_attn", "ln_1", 1),
    "values": ("attn.c_attn", "ln_1", 2),
    "projection": ("attn.c_proj", "", None),
    "feed_in": ("mlp.c_fc", "ln_2", None),
    "feed_out": ("mlp.c_proj", "", None),
}


@dataclasses.dataclass(frozen=True)
class ProductWeights:
    """What one product streams.

    Members: `matrix`: fp16 [k words * T, strips * N], zero where padded; `bias`: fp32 [strips * N], b or b';
    `column_sums`: fp32 [strips * N] of a late LayerNorm, else None.
    """

    matrix: np.ndarray
    bias: np.ndarray
    column_sums: np.ndarray | None


class WeightSource:
    """Reads one checkpoint product by product; at most one tensor and its fp16 form are in memory.

    Parameters: `checkpoint`; `shape`: sizes on the core.
    """

    def __init__(self, checkpoint: Checkpoint, shape: Shape) -> None:
        self._checkpoint = checkpoint
        self._shape = shape

    def product(self, name: str, layer: int = 0) -> ProductWeights:
        """Weights of a product (`LAYER_PRODUCTS`, or "head", which has no layer)."""
        core, shape = self._shape.core, self._shape
        if name == "head":
            folded, bias = self._folded_head()
            padded_rows, padded_columns = shape.x_words * core.tile, shape.vocab_strips * core.lanes
            late = True
        else:
            folded, bias = self._folded(name, layer)
            late = bool(_SOURCES[name][1])
            words = shape.inner_words if name == "feed_out" else shape.x_words
            strips = {"keys": shape.key_strips, "queries": shape.key_strips, "feed_in": shape.inner_strips}
            padded_rows, padded_columns = words * core.tile, strips.get(name, shape.x_strips) * core.lanes
            if name in ("keys", "queries"):
                folded, bias = self._padded_heads(folded), self._padded_heads(bias)
        matrix = np.zeros((padded_rows, padded_columns), np.float16)
        matrix[: folded.shape[0], : folded.shape[1]] = folded
        sums = _fp32(matrix.sum(axis=0, dtype=np.float64)) if late else None
        full_bias = np.zeros(padded_columns, np.float32)
        full_bias[: len(bias)] = _fp32(bias)
        return ProductWeights(matrix, full_bias, sums)

    def embedding(self, name: str, rows: int) -> np.ndarray:
        """The first `rows` rows of "wpe" or "wte" as fp16 [rows rounded up to T, strips * N], zero where padded."""
        core, shape = self._shape.core, self._shape
        table = self._checkpoint.tensor(f"{name}.weight")[:rows]
        padded = np.zeros((-(-rows // core.tile) * core.tile, shape.x_strips * core.lanes), np.float16)
        padded[:rows, : shape.width] = table
        return padded

    def range_problems(self, progress: Callable[[int, int], None] | None = None) -> list[Problem]:
        """Values that fp16 (weights, embeddings) or fp32 (parameters) cannot hold: the worst of each tensor."""
        found: list[Problem] = []
        parts = list(self._parts())
        for done, (label, values) in enumerate(parts, 1):
            for text, array in values():
                kind, limit = ("fp16", FP16_MAX_EXCLUSIVE) if array.dtype == np.float32 else ("fp32", FP32_MAX)
                worst = _worst(array, limit)
                if worst is not None:
                    found.append(Problem(f"{label}{text}", worst, f"finite in {kind}", "scale or retrain the model"))
            if progress is not None:
                progress(done, len(parts))
        return found

    def _parts(self) -> Iterator[tuple[str, Callable[[], list[tuple[str, np.ndarray]]]]]:
        def table(name: str) -> Callable[[], list[tuple[str, np.ndarray]]]:
            return lambda: [("", self._checkpoint.tensor(name))]

        def folded(product: str, layer: int) -> Callable[[], list[tuple[str, np.ndarray]]]:
            def read() -> list[tuple[str, np.ndarray]]:
                matrix, bias = self._folded_head() if product == "head" else self._folded(product, layer, rounded=False)
                return [("", matrix), (" (bias)", bias)]

            return read

        yield "wpe.weight", table("wpe.weight")
        yield "wte.weight", table("wte.weight")
        for layer in range(self._shape.model.n_layer):
            for product in LAYER_PRODUCTS:
                matrix, norm, _ = _SOURCES[product]
                scale = f"h.{layer}.{norm}.weight * " if norm else ""
                yield f"{scale}h.{layer}.{matrix}.weight [{product}]", folded(product, layer)
        yield "ln_f.weight * wte.weight [head]", folded("head", 0)

    def _folded(self, name: str, layer: int, *, rounded: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """(gamma * W in fp32, or fp16 if `rounded`; b + beta @ W in float64) of one layer's product."""
        matrix, norm, part = _SOURCES[name]
        block = f"h.{layer}."
        weight = self._checkpoint.tensor(f"{block}{matrix}.weight")
        bias = self._checkpoint.tensor(f"{block}{matrix}.bias").astype(np.float64)
        if part is not None:
            columns = slice(part * self._shape.width, (part + 1) * self._shape.width)
            weight, bias = weight[:, columns], bias[columns]
        if norm:
            beta = self._checkpoint.tensor(f"{block}{norm}.bias").astype(np.float64)
            bias = bias + beta @ weight.astype(np.float64)
            weight = weight * self._checkpoint.tensor(f"{block}{norm}.weight")[:, None]
        return (weight.astype(np.float16) if rounded else weight), bias

    def _folded_head(self) -> tuple[np.ndarray, np.ndarray]:
        """(gamma * WTE^T in fp32 [d, vocab], beta @ WTE^T in float64); the head's own copy of the embedding."""
        embedding = self._checkpoint.tensor("wte.weight")
        beta = self._checkpoint.tensor("ln_f.bias").astype(np.float64)
        parts = np.array_split(embedding, _blocks(embedding))
        bias = np.concatenate([part.astype(np.float64) @ beta for part in parts])
        embedding *= self._checkpoint.tensor("ln_f.weight")[None, :]
        return embedding.T, bias

    def _padded_heads(self, columns: np.ndarray) -> np.ndarray:
        """[..., heads * head size] -> [..., heads * key_words * T], zeros behind each head."""
        heads, tile = self._shape.heads, self._shape.core.tile
        size = self._shape.model.head_size
        apart = columns.reshape(*columns.shape[:-1], heads, size)
        padded = np.zeros((*columns.shape[:-1], heads, self._shape.key_words * tile), columns.dtype)
        padded[..., :size] = apart
        return padded.reshape(*columns.shape[:-1], -1)


def _blocks(array: np.ndarray) -> int:
    """Parts of about 2^22 elements, so that float64 copies stay small."""
    return max(1, array.size >> 22)


def _fp32(values: np.ndarray) -> np.ndarray:
    """Round float64 to fp32; subnormal results become zero, as in the core."""
    rounded = values.astype(np.float32)
    return np.where(np.abs(rounded) < FP32_NORMAL_MIN, np.copysign(np.float32(0), rounded), rounded)


def _worst(values: np.ndarray, limit: float) -> float | None:
    """The value of largest magnitude if it is not below `limit`, a NaN if there is one, else None."""
    low, high = float(values.min()), float(values.max())
    if np.isnan(low) or np.isnan(high):
        return float("nan")
    worst = low if -low > high else high
    return worst if abs(worst) >= limit else None
