"""The memory image, written row after row into one file a channel; never a second copy of the model.

A row is one port word from every channel: lane n owns T fp16 values, which lie on its C/N channels in order
(docs/core.md, section 1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from host.compiler.key_value_rows import key_rows, value_rows
from host.compiler.regions import Layout
from host.compiler.schedule import Step
from host.compiler.weights import LAYER_PRODUCTS, ProductWeights, WeightSource
from hw.board.program import MemoryImage
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Instruction, Params
from hw.numerics.fp_format import FP16_NAN
from sw.models.key_values import KeyValues
from sw.models.weights import Progress

__all__ = ["product_rows", "write_image"]

ROWS_AT_ONCE = 1 << 12


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
            data = np.ascontiguousarray(by_channel[:, channel]).reshape(-1).data
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
    folder: Path,
    layout: Layout,
    steps: list[Step],
    source: WeightSource,
    key_values: KeyValues | None,
    channel_bytes: int,
    progress: Progress,
) -> MemoryImage:
    """Write ``ch00.bin`` ... into `folder`. Raises OSError if the folder cannot be written.

    The image ends with the embeddings, or with the values if there are `key_values`.
    """
    shape, core = layout.shape, layout.shape.core
    parts = [
        ("weights", _weight_stream(steps, source, core, shape.model.n_layer)),
        ("position_embedding", _named("position embedding", _embedding(source, "wpe", shape.context, core))),
        ("token_embedding", _named("token embedding", _embedding(source, "wte", shape.model.vocab_size, core))),
    ]
    if key_values is not None:
        parts.append(("keys", _named("keys", key_rows(shape, key_values))))
        parts.append(("values", _named("values", value_rows(shape, key_values))))
    total = layout.base("logits" if key_values is not None else "keys")
    files = _ChannelFiles(folder, core)
    try:
        for region, stream in parts:
            first_row, count = layout.rows[region]
            files.pad_to(first_row)
            for what, rows in stream:
                files.write(rows)
                progress(what, files.rows, total)
            if files.rows != first_row + count:
                raise RuntimeError(f"the compiler wrote {region} to row {files.rows}, planned {first_row + count}")
        files.pad_to(total)
    finally:
        hashes = files.close()
    return MemoryImage(files.paths, total * core.port_bytes, channel_bytes, hashes)


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
    tile, lanes, words, strips = core.tile, core.lanes, instruction.words, instruction.strips
    matrix = weights.matrix[first_word * tile : (first_word + words) * tile]
    params = _param_rows(weights, core) if instruction.first and instruction.params else None
    kinds = 2 if instruction.params == Params.NORM else 1
    groups = max(1, ROWS_AT_ONCE // (words * instruction.group)) * instruction.group
    for start in range(0, strips, groups):
        end = min(start + groups, strips)
        count = words * (end - start)
        if params is not None:
            count += kinds * len([s for s in range(start, end) if s % core.param_strips == 0])
        rows, at = np.empty((count, lanes, tile), np.uint16), 0
        for g0 in range(start, end, instruction.group):
            open_strips = min(instruction.group, end - g0)
            columns = matrix[:, g0 * lanes : (g0 + open_strips) * lanes]
            tiles = columns.reshape(words, tile, open_strips, lanes).transpose(0, 2, 3, 1).view(np.uint16)
            for s in range(open_strips):  # the first word's tiles, parameters before those that begin new ones
                if params is not None and (g0 + s) % core.param_strips == 0:
                    rows[at : at + kinds] = params[(g0 + s) // core.param_strips, :kinds]
                    at += kinds
                rows[at] = tiles[0, s]
                at += 1
            rest = (words - 1) * open_strips
            rows[at : at + rest].reshape(words - 1, open_strips, lanes, tile)[...] = tiles[1:]
            at += rest
        yield rows


def _param_rows(weights: ProductWeights, core: CoreConfig) -> np.ndarray:
    """Parameter rows [rows of T/2 strips, 2 (bias, column sum), N, T] as 16-bit words."""
    sums = weights.column_sums if weights.column_sums is not None else np.zeros_like(weights.bias)
    strips = len(weights.bias) // core.lanes
    padded = np.zeros((-(-strips // core.param_strips) * core.param_strips, 2, core.lanes), np.float32)
    padded[:strips, 0] = weights.bias.reshape(strips, core.lanes)
    padded[:strips, 1] = sums.reshape(strips, core.lanes)
    rows = padded.reshape(-1, core.param_strips, 2, core.lanes).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(rows).view(np.uint16).reshape(len(rows), 2, core.lanes, core.tile)


def _embedding(source: WeightSource, name: str, rows: int, core: CoreConfig) -> Iterator[np.ndarray]:
    """Rows of an embedding table: block of T indices after block, strip after strip."""
    table = source.embedding(name, rows)
    strips = table.shape[1] // core.lanes
    blocks = table.reshape(-1, core.tile, strips, core.lanes).transpose(0, 2, 3, 1)
    at_once = max(1, ROWS_AT_ONCE // strips)
    for start in range(0, len(blocks), at_once):
        part = np.ascontiguousarray(blocks[start : start + at_once])
        yield part.view(np.uint16).reshape(-1, core.lanes, core.tile)


def _named(name: str, stream: Iterable[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    for rows in stream:
        yield name, rows
