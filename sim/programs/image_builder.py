"""Builds channel images row by row, for programs that no compiler made."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hw.board.program import MemoryImage
from hw.gpt2.config import CoreConfig
from hw.numerics.dot_dual import sign_magnitude

__all__ = ["ImageBuilder", "int8_tiles", "param_block", "weight_tiles", "write_image"]


def weight_tiles(matrix: NDArray[np.float16], config: CoreConfig) -> NDArray[np.uint16]:
    """Tiles (k words, strips, lanes, tile) of a matrix (k, columns), zero behind its last row and column."""
    rows, columns = matrix.shape
    words, strips = -(-rows // config.tile), -(-columns // config.lanes)
    padded = np.zeros((words * config.tile, strips * config.lanes), np.float16)
    padded[:rows, :columns] = matrix
    return padded.view(np.uint16).reshape(words, config.tile, strips, config.lanes).transpose(0, 2, 3, 1)


def int8_tiles(matrix: NDArray[np.int8], config: CoreConfig) -> NDArray[np.uint16]:
    """Tiles (k words, pairs of strips, lanes, tile) of a matrix (k, columns): the even strip's weights in the low bytes
    (docs/int8.md, section 1)."""
    rows, columns = matrix.shape
    padded = np.zeros((rows, columns + -columns % (2 * config.lanes)), np.int8)
    padded[:, :columns] = matrix
    pairs = sign_magnitude(padded).astype(np.uint16).reshape(rows, -1, 2, config.lanes)
    halves = (pairs[:, :, 0] | pairs[:, :, 1] << 8).reshape(rows, -1)
    return weight_tiles(halves.view(np.float16), config)


def param_block(values: NDArray[np.float32], config: CoreConfig) -> NDArray[np.uint16]:
    """Parameter rows (blocks, lanes, tile) of one fp32 value a column, zero behind the last."""
    lanes, per_row = config.lanes, config.param_strips
    blocks = -(-values.size // (per_row * lanes))
    padded = np.zeros(blocks * per_row * lanes, np.float32)
    padded[: values.size] = values
    by_lane = padded.reshape(blocks, per_row, lanes).transpose(0, 2, 1)
    return np.ascontiguousarray(by_lane).view(np.uint16)


class ImageBuilder:
    """Rows of (lanes, tile) half words, from row 0 on."""

    def __init__(self, config: CoreConfig) -> None:
        self._config = config
        self._rows: list[NDArray[np.uint16]] = []
        self.rows = 0

    def append(self, rows: NDArray[np.uint16]) -> int:
        """Append rows (..., lanes, tile); returns the number of the first."""
        flat = np.ascontiguousarray(rows, np.uint16).reshape(-1, self._config.lanes, self._config.tile)
        self._rows.append(flat)
        self.rows += flat.shape[0]
        return self.rows - flat.shape[0]

    def channels(self) -> NDArray[np.uint16]:
        """The image so far: half words (channels, rows * half words of a row in one channel)."""
        config = self._config
        rows = np.concatenate(self._rows) if self._rows else np.empty((0, config.lanes, config.tile), np.uint16)
        by_channel = rows.reshape(self.rows, config.channels, config.port_bytes // 2)
        return np.ascontiguousarray(by_channel.transpose(1, 0, 2)).reshape(config.channels, -1)


def write_image(channels: Sequence[NDArray[np.uint16]], channel_bytes: int, folder: pathlib.Path) -> MemoryImage:
    """Write one file a channel (``ch00.bin`` ...) into ``folder``."""
    files, digests = [], []
    for index, channel in enumerate(channels):
        data = channel.astype("<u2").tobytes()
        path = folder / f"ch{index:02d}.bin"
        path.write_bytes(data)
        files.append(path)
        digests.append(hashlib.sha256(data).hexdigest())
    return MemoryImage(tuple(files), channels[0].size * 2, channel_bytes, tuple(digests))
