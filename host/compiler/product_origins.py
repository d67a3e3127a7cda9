"""Which part of a GPT-2's matrices a product takes, and how a board pads it to whole words and strips."""

from __future__ import annotations

import dataclasses

import numpy as np

from host.compiler.shape import Shape

__all__ = ["ORIGINS", "Origin", "is_late", "kind_of", "own_columns", "padded_columns", "padded_size", "without_padding"]


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a product's weights come from: `matrix`; `norm` in front of it or ""; first column as a multiple of d;
    `kind` of the boards' slices of its columns (`host.planner.partition.KINDS`)."""

    matrix: str
    norm: str
    part: int
    kind: str


ORIGINS = {
    "queries": Origin("attn.c_attn", "ln_1", 0, "heads"),
    "keys": Origin("attn.c_attn", "ln_1", 1, "heads"),
    "values": Origin("attn.c_attn", "ln_1", 2, "heads"),
    "projection": Origin("attn.c_proj", "", 0, "x"),
    "feed_in": Origin("mlp.c_fc", "ln_2", 0, "inner"),
    "feed_out": Origin("mlp.c_proj", "", 0, "x"),
}


def kind_of(product: str) -> str:
    """The kind of the boards' slices of a product's columns (`host.planner.partition.KINDS`)."""
    return "vocabulary" if product == "head" else ORIGINS[product].kind


def is_late(product: str) -> bool:
    """Whether a LayerNorm stands in front of the product, so that it has column sums."""
    return product == "head" or bool(ORIGINS[product].norm)


def padded_size(shape: Shape, product: str) -> tuple[int, int]:
    """(rows, columns) of a product's padded matrix on a board: whole words, whole rows of the weight stream."""
    words = shape.inner_words if product == "feed_out" else shape.x_words
    strips = {"keys": shape.key_strips, "queries": shape.key_strips, "values": shape.values_strips}
    core = shape.core
    rows = -(-strips.get(product, len(shape.own_strips(kind_of(product)))) // core.mm_strips)
    return words * core.tile, rows * core.mm_strips * core.lanes


def padded_columns(shape: Shape, product: str, values: np.ndarray) -> np.ndarray:
    """What a board has for each column of a product, [true columns], with zeros for the padded ones."""
    padded = np.zeros((1, padded_size(shape, product)[1]), values.dtype)
    target = without_padding(shape, product, padded)
    target[...] = values.reshape(target.shape)
    return padded[0]


def own_columns(shape: Shape, kind: str) -> range:
    """Columns of the model's matrices that a board has: of x for heads, else of the vector of that kind."""
    own, size = shape.own(kind), shape.model.head_size if kind == "heads" else 1
    return range(own.start * size, own.stop * size)


def without_padding(shape: Shape, name: str, padded: np.ndarray) -> np.ndarray:
    """View [true rows, true columns] of a padded array; keys and queries [true rows, heads, head size]."""
    model = shape.model
    rows = padded[: min(len(padded), model.n_inner if name == "feed_out" else shape.width)]
    if name in ("keys", "queries"):  # every head is padded to whole words
        return rows.reshape(len(rows), shape.heads, -1)[:, :, : model.head_size]
    return rows[:, : len(own_columns(shape, kind_of(name)))]
