"""The memory image, written row after row into one file a channel; never a second copy of the model.

A row is one port word from every channel: lane n owns T fp16 values, which lie on its C/N channels in order
(docs/core.md, section 1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from host.compiler.regions import Layout
from host.compiler.schedule import Step
from host.compiler.weights import LAYER_PRODUCTS, ProductWeights, WeightSource
from hw.board.program import MemoryImage
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Instruction, Params

__all__ = ["product_rows", "write_image"]

FP16_NAN = 0x7E00
ROWS_AT_ONCE = 1 << 14
Progress = Callable[[str, int, int], None]


class _ChannelFiles:
    """Appends rows to the channel files and keeps their hashes."""

    def __init__(self, folder: Path, core: CoreConfig) -> None:
        self._core = core
        self.paths = tuple(folder / f"ch{channel:02d}.bin" for channel in range(core.channels))
        self._streams = [path.open("wb") for path in self.paths]
        self._hashes = [hashlib.sha256() for _ in self.paths]
        self.rows = 0

    def write(self, rows: np.ndarray) -> None:
        """Append rows, 16-bit words [rows, N, T]."""
        core = self._core
        by_channel = rows.view(np.uint16).reshape(len(rows), core.channels, core.port_bytes // 2)
        for channel, (stream, digest) in enumerate(zip(self._streams, self._hashes, strict=True)):
            data = np.ascontiguousarray(by_channel[:, channel]).tobytes()
            stream.write(data)
            digest.update(data)
        self.rows += len(rows)

    def pad_to(self, row: int) -> None:
        """Fill with fp16 NaN up to `row`: a read of these rows shows."""
        core = self._core
        if row > self.rows:
            self.write(np.full((row - self.rows, core.lanes, core.tile), FP16_NAN, np.uint16))

    def close(self) -> tuple[str, ...]:
        """Close the files; returns the SHA-256 of each."""
        for stream in self._streams:
            stream.close()
        return tuple(digest.hexdigest() for digest in self._hashes)


def write_image(
    folder: Path, layout: Layout, steps: list[Step], source: WeightSource, channel_bytes: int, progress: Progress
) -> MemoryImage:
    """Write ``ch00.bin`` ... into `folder`. Raises OSError if the folder cannot be written."""
    shape = layout.shape
    files = _ChannelFiles(folder, shape.core)
    total = layout.image_rows
    try:
        for what, rows in _weight_stream(steps, source, shape.core, shape.model.n_layer):
            files.write(rows)
            progress(what, files.rows, total)
        if files.rows != shape.weight_rows:
            raise RuntimeError(f"the compiler wrote {files.rows} weight rows and planned {shape.weight_rows}")
        for name, table, count in (
            ("position_embedding", "wpe", shape.context),
            ("token_embedding", "wte", shape.model.vocab_size),
        ):
            files.pad_to(layout.base(name))
            for rows in _embedding_rows(source.embedding(table, count), shape.core):
                files.write(rows)
                progress(name.replace("_", " "), files.rows, total)
        files.pad_to(layout.image_rows)
    finally:
        hashes = files.close()
    return MemoryImage(files.paths, total * shape.core.port_bytes, channel_bytes, hashes)


def _weight_stream(
    steps: list[Step], source: WeightSource, core: CoreConfig, layers: int
) -> Iterator[tuple[str, np.ndarray]]:
    """All weight rows of a token in order of use, with what they belong to."""
    before = [step for step in steps if step.product]
    loop = [step for step in before if step.in_loop]
    assert {step.product for step in loop} == set(LAYER_PRODUCTS)
    for layer in range(layers):
        name, weights = "", None
        for step in loop:
            if weights is None or step.product != name:  # both halves of V come from one read
                name, weights = step.product, source.product(step.product, layer)
            for rows in product_rows(step.instruction, weights, step.first_word, core):
                yield f"layer {layer}: {step.product}", rows
    for step in before:
        if not step.in_loop:
            for rows in product_rows(step.instruction, source.product(step.product), step.first_word, core):
                yield step.name, rows


def product_rows(
    instruction: Instruction, weights: ProductWeights, first_word: int, core: CoreConfig
) -> Iterator[np.ndarray]:
    """Stream rows of one MM, 16-bit words [rows, N, T], in the order of docs/core.md section 3."""
    tile, lanes, group = core.tile, core.lanes, instruction.group
    words, strips = instruction.words, instruction.strips
    matrix = weights.matrix[first_word * tile : (first_word + words) * tile]
    params = _param_rows(weights, core) if instruction.first and instruction.params else None
    pending: list[np.ndarray] = []
    count = 0
    for g0 in range(0, strips, group):
        open_strips = min(group, strips - g0)
        columns = matrix[:, g0 * lanes : (g0 + open_strips) * lanes]
        tiles = columns.reshape(words, tile, open_strips, lanes).transpose(0, 2, 3, 1).view(np.uint16)
        if params is None:
            pending.append(tiles.reshape(-1, lanes, tile))
        else:
            for s in range(g0, g0 + open_strips):
                if s % core.param_strips == 0:
                    both = params[s // core.param_strips]
                    pending.append(both if instruction.params == Params.NORM else both[:1])
                pending.append(tiles[0, s - g0][None])
            pending.append(tiles[1:].reshape(-1, lanes, tile))
        count += words * open_strips
        if count >= ROWS_AT_ONCE:
            yield np.concatenate(pending)
            pending, count = [], 0
    if pending:
        yield np.concatenate(pending)


def _param_rows(weights: ProductWeights, core: CoreConfig) -> np.ndarray:
    """Parameter rows [rows of T/2 strips, 2 (bias, column sum), N, T] as 16-bit words."""
    sums = weights.column_sums if weights.column_sums is not None else np.zeros_like(weights.bias)
    strips = len(weights.bias) // core.lanes
    padded = np.zeros((-(-strips // core.param_strips) * core.param_strips, 2, core.lanes), np.float32)
    padded[:strips, 0] = weights.bias.reshape(strips, core.lanes)
    padded[:strips, 1] = sums.reshape(strips, core.lanes)
    rows = padded.reshape(-1, core.param_strips, 2, core.lanes).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(rows).view(np.uint16).reshape(len(rows), 2, core.lanes, core.tile)


def _embedding_rows(table: np.ndarray, core: CoreConfig) -> Iterator[np.ndarray]:
    """Rows of an embedding table fp16 [blocks * T, strips * N]: block after block, strip after strip."""
    strips = table.shape[1] // core.lanes
    blocks = table.reshape(-1, core.tile, strips, core.lanes).transpose(0, 2, 3, 1)
    at_once = max(1, ROWS_AT_ONCE // strips)
    for start in range(0, len(blocks), at_once):
        part = np.ascontiguousarray(blocks[start : start + at_once])
        yield part.view(np.uint16).reshape(-1, core.lanes, core.tile)
