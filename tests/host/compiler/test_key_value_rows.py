"""Keys and values in the image are what the core itself would have written, to the bit, NaN everywhere else."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import host.compiler.key_value_rows as key_value_rows
from host.compiler import CompileError, Shape, compile_model
from host.driver.gpt2_kernel import Gpt2Kernel
from host.driver.session import open_kernel
from host.errors import BadInput, KernelFault
from hw.board.board_model import BoardModel
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import core_config
from sim.functional import FunctionalBoard
from sw.models.gpt2 import GPT2, GPT2Config
from sw.models.key_values import GivenKeyValues, SeededKeyValues, stacked
from sw.models.seeded_weights import SeededCheckpoint

WAIT_S = 60.0
TAILS = GPT2Config(n_layer=2, n_head=3, n_embd=36, n_positions=48, vocab_size=97)  # heads of 12 in words of 16
TWO_WORDS = GPT2Config(n_layer=2, n_head=2, n_embd=64, n_positions=48, vocab_size=97)
LARGE = GPT2Config(n_layer=2, n_head=3, n_embd=48, n_positions=192, vocab_size=97)
CASES = {
    "tails": (TAILS, "16x4", 21),
    "two words a key": (TWO_WORDS, "16x4", 33),
    "64x16": (LARGE, "64x16", 70),
    "two rows": (TWO_WORDS, "16x4r2", 33),
    "four rows": (TAILS, "16x4r4", 21),
    "64x16, four rows": (LARGE, "64x16r4", 70),
}


@contextmanager
def _board(program: Program, image: MemoryImage) -> Iterator[tuple[Gpt2Kernel, BoardModel]]:
    board = FunctionalBoard()
    with open_kernel(board, program.core) as kernel:
        kernel.load((program, image))
        yield kernel, board


def _read_cache(program: Program, board: BoardModel, config: GPT2Config, positions: int) -> tuple[np.ndarray, ...]:
    """Keys and values [layer, head, position, dim] out of a board's memory, element by element as docs/core.md says."""
    core, r = program.core, program.registers
    tile, lanes, per_lane = core.tile, core.lanes, core.channels // core.lanes
    size = core.port_bytes * (r["logits_base"])
    memory = [np.frombuffer(board.read_memory(c, 0, size), np.float16) for c in range(core.channels)]
    segment = tile // per_lane

    def element(row: int, lane: int, index: int) -> np.float16:
        return memory[lane * per_lane + index // segment][row * segment + index % segment]

    keys = np.empty((config.n_layer, config.n_head, positions, config.head_size), np.float16)
    values = np.empty_like(keys)
    for layer, head, p, dim in np.ndindex(keys.shape):
        slot = p // lanes * lanes + (p + core.rows * head) % lanes
        key_head = r["key_base"] + layer * r["key_layer_rows"] + head * r["key_head_rows"]
        row = key_head + slot // lanes * r["key_words"] + dim // tile
        keys[layer, head, p, dim] = element(row, slot % lanes, dim % tile)
        value_head = r["value_base"] + layer * r["value_layer_rows"] + head * r["value_head_rows"]
        row = value_head + slot // tile * r["value_strips"] + dim // lanes
        values[layer, head, p, dim] = element(row, dim % lanes, slot % tile)
    return keys, values


@pytest.mark.parametrize("name", CASES)
def test_an_image_with_a_boards_own_keys_and_values_goes_on_as_the_board(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, core_name, done = CASES[name]
    core, weights = core_config(core_name), SeededCheckpoint(config, 4)
    ids = np.random.default_rng(2).integers(0, config.vocab_size, done + 1).tolist()
    program, image = compile_model(weights, core, tmp_path / "plain")
    with _board(program, image) as (kernel, board):
        for row in range(core.rows):  # the given keys and values are those of every request
            kernel.start(ids[:done], 1, row=row)
            kernel.wait(WAIT_S)
        before = board.kv_hash()
        keys, values = _read_cache(program, board, config, done)
        wanted = _step(kernel, ids, done)
    assert np.isfinite(keys).all() and np.isfinite(values).all()

    def again(keys: np.ndarray, values: np.ndarray) -> tuple[str, tuple[object, ...]]:
        given = GivenKeyValues(config, keys, values)
        with _board(*compile_model(weights, core, tmp_path / "again", key_values=given)) as (kernel, board):
            return board.kv_hash(), _step(kernel, [0] * done + ids[done:], done)

    assert again(keys, values) == (before, wanted)
    # twins: one bit of one key, of one value; heads rotated by one more
    for array in (keys, values):
        array.view(np.uint16)[1, 2 % config.n_head, done - 2, 3] ^= 0x200
        changed_hash, changed = again(keys, values)
        assert changed_hash != before and changed != wanted
        array.view(np.uint16)[1, 2 % config.n_head, done - 2, 3] ^= 0x200

    def turned(shape: Shape, positions: int) -> tuple[np.ndarray, np.ndarray]:
        heads, position = np.arange(shape.heads)[:, None], np.arange(positions)[None]
        first = position // shape.core.lanes * shape.core.lanes
        return heads, first + (position + (shape.core.rows + 1) * heads) % shape.core.lanes

    monkeypatch.setattr(key_value_rows, "_slots", turned)
    with pytest.raises(KernelFault, match="NaN"):  # some slot of the last group was never written
        again(keys, values)


def _step(kernel: Gpt2Kernel, ids: list[int], position: int) -> tuple[object, ...]:
    """Three tokens from `position` on: (tokens, logits of each, hash of the cache)."""
    kernel.start(ids, 3, write_logits=True, position=position)
    tokens = kernel.wait(WAIT_S).tokens
    return tokens, [kernel.read_logits(position + i).tobytes() for i in range(3)], kernel.kv_hash()


@pytest.mark.parametrize("name", CASES)
def test_a_step_behind_seeded_keys_and_values_is_pytorchs(name: str, tmp_path: Path) -> None:
    config, core_name, positions = CASES[name]
    weights = SeededCheckpoint(config, 4)
    with _board(
        *compile_model(weights, core_config(core_name), tmp_path / "p", seeded_positions=positions, kv_seed=6)
    ) as (kernel, _):
        kernel.start([0] * positions + [5], 1, write_logits=True, position=positions)
        kernel.wait(WAIT_S)
        logits = kernel.read_logits(positions)
        with pytest.raises(BadInput, match="cache holds those of"):  # no more than these and the step
            kernel.start([0] * (positions + 2), 1, position=positions + 2 - 1)

    def reference(seed: int) -> np.ndarray:
        model = GPT2.from_weights(weights)
        cache = model.new_cache()
        for target, rows in zip(
            (cache.keys, cache.values), stacked(SeededKeyValues(config, positions, seed)), strict=True
        ):
            target[:, 0, :, :positions] = torch.from_numpy(rows.astype(np.float32))
        with torch.inference_mode():
            return model(torch.tensor([[5]]), cache, positions)[0, 0].numpy()

    wanted = reference(6)
    error = np.abs(logits - wanted).max()
    print(f"largest error {error:.1e} of {np.abs(wanted).max():.2f}")
    assert error < 3e-3 * np.abs(wanted).max()
    assert np.abs(logits - reference(7)).max() > 3e-2 * np.abs(wanted).max()  # twin


def test_seeded_positions_stay_any_token_until_a_run_writes_them(tmp_path: Path) -> None:
    with _board(
        *compile_model(SeededCheckpoint(TAILS, 4), core_config("16x4"), tmp_path / "p", seeded_positions=9)
    ) as (
        kernel,
        board,
    ):
        fresh = board.kv_hash()
        answers = []
        for filler in (0, 1):
            kernel.start([filler] * 9 + [5, 6], 1, position=9)
            answers.append((kernel.wait(WAIT_S).tokens, board.kv_hash()))
        assert answers[0] == answers[1] and answers[0][1] != fresh
        kernel.start([3, 3, 3], 1)  # from position 0 on: the first three are these now
        kernel.wait(WAIT_S)
        with pytest.raises(BadInput, match="cache holds those of 0"):
            kernel.start([4] * 10, 1, position=9)
        with pytest.raises(BadInput, match="cache holds those of 3"):  # the rest is of a sequence that is gone
            kernel.start([3] * 10, 1, position=9)


def test_regions_registers_and_weights_stay_where_they_are(tmp_path: Path) -> None:
    weights, core = SeededCheckpoint(TAILS, 4), core_config("16x4")
    plain, image = compile_model(weights, core, tmp_path / "plain")
    seeded, longer = compile_model(weights, core, tmp_path / "seeded", seeded_positions=9)
    assert seeded.regions == plain.regions and dict(seeded.registers) == dict(plain.registers)
    assert seeded.notes["cached_positions"] == 9 and "cached_positions" not in plain.notes
    end = max(r.offset + r.bytes for r in seeded.regions if r.kind == "values")
    assert longer.image_bytes == -(-end // 4096) * 4096
    for short, long in zip(image.files, longer.files, strict=True):
        assert long.read_bytes()[: image.image_bytes] == short.read_bytes()
    halves = [np.fromfile(path, np.uint16)[image.image_bytes // 2 :] for path in longer.files]
    written = sum(int((part != 0x7E00).sum()) for part in halves)
    assert written == 9 * TAILS.n_layer * TAILS.n_head * (16 + 12)  # a key is padded to a word
    longer.verify()


def test_what_cannot_be_held_is_listed(tmp_path: Path) -> None:
    weights, core = SeededCheckpoint(TAILS, 4), core_config("16x4")
    other = SeededKeyValues(dataclasses.replace(TAILS, n_layer=3), 4)
    for options, what in (
        ({"seeded_positions": 48}, "positions with keys and values is 48, must be at most 47"),
        ({"seeded_positions": 16, "context": 16}, "must be at most 15"),
        ({"key_values": other}, "model of the keys and values"),
    ):
        with pytest.raises(CompileError, match=what) as caught:
            compile_model(weights, core, tmp_path / "p", **options)  # type: ignore[arg-type]
        assert caught.value.kind == "does_not_fit" and not (tmp_path / "p").exists()
    with pytest.raises(ValueError, match="either"):
        compile_model(weights, core, tmp_path / "p", seeded_positions=3, key_values=other)
    compile_model(weights, core, tmp_path / "p", seeded_positions=47)
