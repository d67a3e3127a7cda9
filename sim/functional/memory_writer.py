"""Writes of the core: keys, values transposed into their slots, and logits (docs/core.md, sections 1 and 6)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BoardError
from hw.gpt2.config import CoreConfig

from .attention import slot_of
from .channel_memory import ChannelMemory
from .tile_sum import functional_njit

__all__ = ["MemoryWriter"]


@functional_njit
def _write_keys(
    memory: NDArray[np.uint16],
    segment: int,
    base: int,
    head_rows: int,
    new_keys: NDArray[np.uint16],
    heads: int,
    key_words: int,
    position: int,
    lanes: int,
    core_rows: int,
) -> None:
    width = new_keys.shape[1]
    for head in range(heads):
        slot = slot_of(position, head, lanes, core_rows)
        for w in range(key_words):
            start = (base + head * head_rows + slot // lanes * key_words + w) * segment
            for e in range(width):
                channel = (slot % lanes) * (width // segment) + e // segment
                memory[channel, start + e % segment] = new_keys[head * key_words + w, e]


@functional_njit
def _write_values(
    memory: NDArray[np.uint16],
    segment: int,
    base: int,
    head_rows: int,
    new_values: NDArray[np.uint16],
    heads: int,
    strips: int,
    position: int,
    width: int,
    core_rows: int,
) -> None:
    lanes = new_values.shape[1]
    for head in range(heads):
        slot = slot_of(position, head, lanes, core_rows)
        element = slot % width
        for s in range(strips):
            start = (base + head * head_rows + slot // width * strips + s) * segment
            for lane in range(lanes):
                channel = lane * (width // segment) + element // segment
                memory[channel, start + element % segment] = new_values[head * strips + s, lane]


class MemoryWriter:
    """Writes of one row of the core into channel memory; ``registers`` are the row's, sampled at start.

    Every method raises BoardError if a row lies outside the channels.
    """

    def __init__(self, memory: ChannelMemory, registers: Mapping[str, int], config: CoreConfig) -> None:
        self._memory = memory
        self._registers = registers
        self._config = config
        self._segment = config.port_bytes // 2
        self._row_limit = memory.channel_bytes // config.port_bytes

    def _check(self, what: str, last_row: int) -> None:
        if last_row >= self._row_limit:
            raise BoardError(f"{what} go to row {last_row}; a channel has {self._row_limit} rows")

    def write_keys(self, new_keys: NDArray[np.uint16], layer: int, position: int) -> None:
        """Keys (new key words, tile) of all heads of a layer at a position."""
        r, lanes = self._registers, self._config.lanes
        base = r["key_base"] + layer * r["key_layer_rows"]
        head_rows, heads, words = r["key_head_rows"], r["heads"], r["key_words"]
        self._check("keys", base + (heads - 1) * head_rows + position // lanes * words + words - 1)
        sizes = heads, words, position, lanes, self._config.rows
        _write_keys(self._memory.halves, self._segment, base, head_rows, new_keys, *sizes)

    def write_values(self, new_values: NDArray[np.uint16], layer: int, position: int) -> None:
        """Values (new value strips, lanes) of all heads of a layer at a position."""
        r, tile = self._registers, self._config.tile
        base = r["value_base"] + layer * r["value_layer_rows"]
        head_rows, heads, strips = r["value_head_rows"], r["heads"], r["value_strips"]
        self._check("values", base + (heads - 1) * head_rows + position // tile * strips + strips - 1)
        sizes = heads, strips, position, tile, self._config.rows
        _write_values(self._memory.halves, self._segment, base, head_rows, new_values, *sizes)

    def write_logits(self, logits: NDArray[np.uint32], first_strip: int, position: int) -> None:
        """Results (strips, lanes) of a LOGITS product whose first strip has index ``first_strip`` in the vector."""
        channels, per_word = self._config.channels, self._config.port_bytes // 4
        start = first_strip * self._config.lanes
        before = start % per_word
        words = -(-(before + logits.size) // per_word)
        data = np.zeros(words * per_word, np.uint32)
        data[before : before + logits.size] = logits.reshape(-1)
        base = self._registers["logits_base"] + position * self._registers["logits_rows"]
        first_word = start // per_word
        self._check("logits", base + (first_word + words - 1) // channels)
        view = self._memory.halves.view(np.uint32)
        for j in range(words):
            row, channel = base + (first_word + j) // channels, (first_word + j) % channels
            keep = before if j == 0 else 0
            view[channel, row * per_word + keep : (row + 1) * per_word] = data[j * per_word + keep : (j + 1) * per_word]
