"""The memory images of all boards, written row after row into one file a channel; never a second copy of the model.

Each tensor is read once for all boards, whose files grow side by side.

A row is one port word from every channel: lane n owns T fp16 values, which lie on its C/N channels in order
(docs/core.md, section 1).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from host.compiler.int8_rows import int8_product_rows
from host.compiler.int8_weights import Int8Weights, int8_product
from host.compiler.key_value_rows import key_rows, value_rows
from host.compiler.regions import Layout
from host.compiler.shape import Shape
from host.compiler.steps import Step
from host.compiler.stream_order import ROWS_AT_ONCE, ordered_rows
from host.compiler.weights import LAYER_PRODUCTS, ProductWeights, WeightSource
from hw.board.gpt2_map import row_register
from hw.board.program import MemoryImage
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Instruction, Params
from hw.numerics.fp_format import FP16_NAN
from sw.models.key_values import KeyValues
from sw.models.weights import Progress

__all__ = ["BoardImage", "product_rows", "write_images"]


@dataclasses.dataclass(frozen=True)
class BoardImage:
    """What a board's image is to be: `folder` to write to, `layout` of the memory, `steps` of the program."""

    folder: Path
    layout: Layout
    steps: Sequence[Step]

    @property
    def shape(self) -> Shape:
        """Sizes of the board's part."""
        return self.layout.shape


class _ChannelFiles:
    """Appends rows to the channel files of a board and keeps their hashes."""

    def __init__(self, board: BoardImage) -> None:
        self.board = board
        self._core = core = board.shape.core
        folder = board.folder
        self.paths = tuple(folder / f"ch{channel:02d}.bin" for channel in range(core.channels))
        self._streams = [path.open("wb") for path in self.paths]
        self._hashes = [hashlib.sha256() for _ in self.paths]
        self.rows = 0

    def write(self, rows: np.ndarray) -> None:
        """Append rows, 16-bit words [rows, N, T]."""
        core = self._core
        by_channel = rows.view(np.uint16).reshape(len(rows), core.channels, core.port_bytes // 2)
        for channel, (stream, digest) in enumerate(zip(self._streams, self._hashes, strict=True)):
            data = np.ascontiguousarray(by_channel[:, channel]).reshape(-1).data
            stream.write(data)
            digest.update(data)
        self.rows += len(rows)

    def pad_to(self, row: int) -> None:
        """Fill with fp16 NaN up to `row`: a read of these rows shows."""
        core = self._core
        if row > self.rows:
            self.write(np.full((row - self.rows, core.lanes, core.tile), FP16_NAN, np.uint16))

    def check_end(self, region: str) -> None:
        """Raise RuntimeError unless exactly the region is written."""
        first_row, count = self.board.layout.rows[region]
        if self.rows != first_row + count:
            raise RuntimeError(f"the compiler wrote {region} to row {self.rows}, planned {first_row + count}")

    def close(self) -> tuple[str, ...]:
        """Close the files; returns the SHA-256 of each."""
        for stream in self._streams:
            stream.close()
        return tuple(digest.hexdigest() for digest in self._hashes)


_Part = tuple[str, _ChannelFiles, np.ndarray]  # (what it is, whose, rows)


def write_images(
    boards: Sequence[BoardImage],
    source: WeightSource,
    key_values: Sequence[KeyValues],
    channel_bytes: int,
    progress: Progress,
) -> list[MemoryImage]:
    """Write ``ch00.bin`` ... into the folder of every board. Raises OSError if one cannot be written.

    `key_values` are those of every request, or none. An image ends with the embeddings, or with the last values.
    """
    files: list[_ChannelFiles] = []
    try:
        for board in boards:
            files.append(_ChannelFiles(board))
        parts = [
            ("weights", _weight_stream(files, source)),
            ("position_embedding", _embedding(files, source, "wpe")),
            ("token_embedding", _embedding(files, source, "wte")),
        ]
        for request, cache in enumerate(key_values):
            parts.append((row_register("keys", request), _keys(files, cache)))
            parts.append((row_register("values", request), _values(files, cache)))
        ends = [board.layout.base("logits" if key_values else "keys") for board in boards]
        total = sum(ends)
        for region, stream in parts:
            for one in files:
                one.pad_to(one.board.layout.base(region))
            for what, one, rows in stream:
                one.write(rows)
                progress(what, sum(each.rows for each in files), total)
            for one in files:
                one.check_end(region)
        for one, end in zip(files, ends, strict=True):
            one.pad_to(end)
    finally:
        hashes = [one.close() for one in files]
    return [
        MemoryImage(one.paths, end * one.board.shape.core.port_bytes, channel_bytes, digests)
        for one, end, digests in zip(files, ends, hashes, strict=True)
    ]


def _weight_stream(files: Sequence[_ChannelFiles], source: WeightSource) -> Iterator[_Part]:
    """All weight rows of a token, each board's in its own order of use; a matrix is read for all boards at once."""
    loops, heads = [], []
    for one in files:
        streaming = [step for step in one.board.steps if step.product]
        loop = [step for step in streaming if step.in_loop]
        assert {step.product for step in loop} == set(LAYER_PRODUCTS)
        by_matrix = groupby(loop, key=lambda step: source.matrix_of(step.product))
        loops.append([(matrix, list(steps)) for matrix, steps in by_matrix])
        heads.append([step for step in streaming if not step.in_loop])
    for layer in range(files[0].board.shape.model.n_layer):
        for of_one_matrix in zip(*loops, strict=True):
            assert len({matrix for matrix, _ in of_one_matrix}) == 1
            for one, (_, steps) in zip(files, of_one_matrix, strict=True):
                yield from _step_rows(one, steps, source, layer)
    for one, steps in zip(files, heads, strict=True):
        yield from _step_rows(one, steps, source, None)


def _step_rows(one: _ChannelFiles, steps: Sequence[Step], source: WeightSource, layer: int | None) -> Iterator[_Part]:
    """Rows of a board's neighbouring steps, each product of which is made once; `layer` None: of the head."""
    shape, products = one.board.shape, dict[str, ProductWeights | Int8Weights]()
    for step in steps:
        weights = products.get(step.product)
        if weights is None:
            weights = products[step.product] = (
                int8_product(source, shape, step.product, layer or 0)
                if shape.core.has_int8
                else source.product(shape, step.product, layer or 0)
            )
        what = step.product if layer is None else f"layer {layer}: {step.product}"
        weights = weights.strips(step.first_strip, step.instruction.strips, shape.core.lanes)
        of_step = (
            int8_product_rows(step.instruction, weights, step.first_word, shape.core)
            if isinstance(weights, Int8Weights)
            else product_rows(step.instruction, weights, step.first_word, shape.core)
        )
        for rows in of_step:
            yield what, one, rows


def product_rows(
    instruction: Instruction, weights: ProductWeights, first_word: int, core: CoreConfig
) -> Iterator[np.ndarray]:
    """Stream rows of one MM, 16-bit words [rows, N, T], in the order of docs/core.md section 3."""
    tile, lanes, words = core.tile, core.lanes, instruction.words
    matrix = weights.matrix[first_word * tile : (first_word + words) * tile]

    def tiles(first: int, end: int) -> np.ndarray:
        columns = matrix[:, first * lanes : end * lanes]
        return columns.reshape(words, tile, end - first, lanes).transpose(0, 2, 3, 1).view(np.uint16)

    kinds = 2 if instruction.params == Params.NORM else 1
    params = _param_rows(weights, core)[:, :kinds] if instruction.first and instruction.params else None
    return ordered_rows(instruction, tiles, params, core)


def _param_rows(weights: ProductWeights, core: CoreConfig) -> np.ndarray:
    """Parameter rows [rows of T/2 strips, 2 (bias, column sum), N, T] as 16-bit words."""
    sums = weights.column_sums if weights.column_sums is not None else np.zeros_like(weights.bias)
    strips = len(weights.bias) // core.lanes
    padded = np.zeros((-(-strips // core.param_strips) * core.param_strips, 2, core.lanes), np.float32)
    padded[:strips, 0] = weights.bias.reshape(strips, core.lanes)
    padded[:strips, 1] = sums.reshape(strips, core.lanes)
    rows = padded.reshape(-1, core.param_strips, 2, core.lanes).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(rows).view(np.uint16).reshape(len(rows), 2, core.lanes, core.tile)


def _embedding(files: Sequence[_ChannelFiles], source: WeightSource, name: str) -> Iterator[_Part]:
    """Rows of an embedding table, the same for every board: block of T indices after block, strip after strip."""
    shape = files[0].board.shape
    core, position = shape.core, name == "wpe"
    table = source.embedding(shape, name, shape.context if position else shape.model.vocab_size)
    strips = table.shape[1] // core.lanes
    blocks = table.reshape(-1, core.tile, strips, core.lanes).transpose(0, 2, 3, 1)
    at_once = max(1, ROWS_AT_ONCE // strips)
    for start in range(0, len(blocks), at_once):
        part = np.ascontiguousarray(blocks[start : start + at_once])
        rows = part.view(np.uint16).reshape(-1, core.lanes, core.tile)
        for one in files:
            yield f"{'position' if position else 'token'} embedding", one, rows


def _keys(files: Sequence[_ChannelFiles], key_values: KeyValues) -> Iterator[_Part]:
    for layer in range(key_values.config.n_layer):
        keys = key_values.keys(layer)
        for one in files:
            yield "keys", one, key_rows(one.board.shape, keys)


def _values(files: Sequence[_ChannelFiles], key_values: KeyValues) -> Iterator[_Part]:
    for layer in range(key_values.config.n_layer):
        values = key_values.values(layer)
        for one in files:
            yield "values", one, value_rows(one.board.shape, values)
