"""The order of a product's rows in the weight stream (docs/core.md, section 3), whatever a row holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Instruction

__all__ = ["ordered_rows"]

ROWS_AT_ONCE = 1 << 12

Tiles = Callable[[int, int], np.ndarray]
"""Takes (first strip, strip behind the last); returns the rows' 16-bit words [words, rows of a word, N, T]."""


def ordered_rows(
    instruction: Instruction, tiles: Tiles, params: np.ndarray | None, core: CoreConfig
) -> Iterator[np.ndarray]:
    """Stream rows of one MM, 16-bit words [rows, N, T], some thousand at a time.

    Parameters
    ----------
    tiles : callable
        Makes the rows of a group of strips.
    params : array or None
        Parameter rows [blocks of T/2 strips, kinds, N, T]; None if the run takes none.

    Raises ValueError if strips or group are not a multiple of what one row serves (`CoreConfig.mm_strips`).
    """
    words, strips, group, block = instruction.words, instruction.strips, instruction.group, core.param_strips
    if group % core.mm_strips or strips % core.mm_strips:
        raise ValueError(f"strips and group must be multiples of {core.mm_strips}, got {strips} and {group}")
    at_once = max(1, ROWS_AT_ONCE // (words * group)) * group
    for start in range(0, strips, at_once):
        parts: list[np.ndarray] = []
        for g0 in range(start, min(start + at_once, strips), group):
            end = min(g0 + group, strips)
            rows = tiles(g0, end)
            for k, s in enumerate(range(g0, end, core.mm_strips)):  # of the first word, parameters before new blocks
                if params is not None and s % block == 0:
                    parts.append(params[s // block])
                parts.append(rows[0, k : k + 1])
            parts.append(rows[1:].reshape(-1, core.lanes, core.tile))
        yield np.concatenate(parts)
