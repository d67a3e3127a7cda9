"""A board's rows of keys and values for positions whose keys and values are given (docs/core.md, section 1).

They are what the core itself would have written, fp16 NaN everywhere else: a read of any other position shows.
"""

from __future__ import annotations

import numpy as np

from host.compiler.shape import Shape
from hw.numerics.fp_format import FP16_NAN

__all__ = ["key_rows", "value_rows"]


def key_rows(shape: Shape, keys: np.ndarray) -> np.ndarray:
    """A layer of the region of the keys, 16-bit words [rows, N, T]; `keys` fp16 [all heads, positions, head size]."""
    core, words = shape.core, shape.key_words
    own = _own(shape, keys)
    heads, slots = _slots(shape, own.shape[1])
    padded = np.zeros((*slots.shape, words * core.tile), np.float16)
    padded[..., : shape.model.head_size] = own
    rows = np.full((shape.heads, shape.key_head_rows // words, words, core.lanes, core.tile), FP16_NAN, np.uint16)
    by_word = padded.view(np.uint16).reshape(*slots.shape, words, core.tile)
    rows[heads, slots // core.lanes, :, slots % core.lanes] = by_word
    return rows.reshape(-1, core.lanes, core.tile)


def value_rows(shape: Shape, values: np.ndarray) -> np.ndarray:
    """A layer of the region of the values; shapes as for `key_rows`."""
    core, strips = shape.core, shape.value_strips
    own = _own(shape, values)
    heads, slots = _slots(shape, own.shape[1])
    rows = np.full((shape.heads, shape.value_head_rows // strips, strips, core.lanes, core.tile), FP16_NAN, np.uint16)
    words = np.ascontiguousarray(own).view(np.uint16)
    rows[heads, slots // core.tile, :, :, slots % core.tile] = words.reshape(*slots.shape, strips, core.lanes)
    return rows.reshape(-1, core.lanes, core.tile)


def _own(shape: Shape, of_all_heads: np.ndarray) -> np.ndarray:
    heads = shape.own("heads")
    return of_all_heads[heads.start : heads.stop]


def _slots(shape: Shape, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """The board's heads [heads, 1] and the slot [heads, positions] of every position: rotated by the core's rows times
    the head, counted on the board, inside its group of N."""
    heads, position = np.arange(shape.heads)[:, None], np.arange(positions)[None]
    inside = shape.core.lanes - 1
    return heads, (position & ~inside) | ((position + shape.core.rows * heads) & inside)
