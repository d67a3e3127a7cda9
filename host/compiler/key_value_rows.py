"""Rows of the key and value regions for positions whose keys and values are given (docs/core.md, section 1).

They are what the core itself would have written, fp16 NaN everywhere else: a read of any other position shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from host.compiler.shape import Shape
from hw.numerics.fp_format import FP16_NAN
from sw.models.key_values import KeyValues

__all__ = ["key_rows", "value_rows"]


def key_rows(shape: Shape, key_values: KeyValues) -> Iterator[np.ndarray]:
    """The region of the keys, layer after layer: 16-bit words [rows, N, T]."""
    core, words = shape.core, shape.key_words
    heads, slots = _slots(shape, key_values.positions)
    for layer in range(shape.model.n_layer):
        padded = np.zeros((*slots.shape, words * core.tile), np.float16)
        padded[..., : shape.model.head_size] = key_values.keys(layer)
        rows = np.full((shape.heads, shape.key_head_rows // words, words, core.lanes, core.tile), FP16_NAN, np.uint16)
        by_word = padded.view(np.uint16).reshape(*slots.shape, words, core.tile)
        rows[heads, slots // core.lanes, :, slots % core.lanes] = by_word
        yield rows.reshape(-1, core.lanes, core.tile)


def value_rows(shape: Shape, key_values: KeyValues) -> Iterator[np.ndarray]:
    """The region of the values, layer after layer: 16-bit words [rows, N, T]."""
    core, strips = shape.core, shape.value_strips
    heads, slots = _slots(shape, key_values.positions)
    for layer in range(shape.model.n_layer):
        rows = np.full(
            (shape.heads, shape.value_head_rows // strips, strips, core.lanes, core.tile), FP16_NAN, np.uint16
        )
        values = np.ascontiguousarray(key_values.values(layer)).view(np.uint16)
        rows[heads, slots // core.tile, :, :, slots % core.tile] = values.reshape(*slots.shape, strips, core.lanes)
        yield rows.reshape(-1, core.lanes, core.tile)


def _slots(shape: Shape, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Heads [heads, 1] and the slot [heads, positions] of every position: rotated by the head in its group of N."""
    heads, position = np.arange(shape.heads)[:, None], np.arange(positions)[None]
    inside = shape.core.lanes - 1
    return heads, (position & ~inside) | ((position + heads) & inside)
