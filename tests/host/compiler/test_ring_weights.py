"""Matrices rebuilt from the images of all boards, tile by tile where the programs read them, are the model's: every
weight stands there exactly once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from host.compiler import CompiledRing, compile_model, compile_ring
from host.planner import Partition
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import CoreConfig, core_config
from hw.gpt2.isa import Commit, Instruction, Op, Params
from hw.gpt2.isa import Path as DrainPath
from sw.models.gpt2_config import GPT2Config
from sw.models.key_values import SeededKeyValues
from sw.models.seeded_weights import SeededCheckpoint

SMALL, LARGE = core_config("16x4"), core_config("64x16")
FIVE = GPT2Config(2, 5, 60, 40, 140)
XL_WIDE = GPT2Config(1, 25, 1600, 64, 330, n_inner=1680)
CASES: dict[str, tuple[GPT2Config, CoreConfig, int, Partition | None]] = {
    "heads of 12, three boards": (FIVE, SMALL, 3, None),
    "hardly any accumulators": (FIVE, dataclasses.replace(SMALL, acc_depth=8, param_depth=8), 2, None),
    "uneven by hand": (FIVE, SMALL, 3, Partition((1, 3, 1), (16, 16, 28), (112, 32, 96), (16, 112, 12))),
    "eight boards": (GPT2Config(2, 8, 128, 40, 300), LARGE, 8, None),
    "a layer of XL on four boards": (XL_WIDE, LARGE, 4, None),
}
PARTS = {"keys": 1, "queries": 0, "values": 2}


class _Rebuilt:
    """Matrices of fp16 weights, how often each weight was found, and the parameters, by (product, layer)."""

    def __init__(self) -> None:
        self.matrices: dict[tuple[str, int], np.ndarray] = {}
        self.counts: dict[tuple[str, int], np.ndarray] = {}
        self.bias: dict[tuple[str, int], np.ndarray] = {}
        self.sums: dict[tuple[str, int], np.ndarray] = {}


def _size(product: str, model: GPT2Config) -> tuple[int, int]:
    width, inner = model.n_embd, model.n_inner
    special = {"feed_in": (width, inner), "feed_out": (inner, width), "head": (width, model.vocab_size)}
    return special.get(product, (width, width))


def _product(i: Instruction, source: int, inner_base: int) -> str:
    """What a product is, by the fields of its run with `last` and the first word of its source vector."""
    if i.path == DrainPath.LOGITS:
        return "head"
    if i.path == DrainPath.GELU:
        return "feed_in"
    if i.path == DrainPath.RESIDUAL:
        return "feed_out" if source >= inner_base else "projection"
    return {Commit.KEYS: "keys", Commit.VALUES: "values"}.get(Commit(i.commit), "queries")


def _read(rebuilt: _Rebuilt, program: Program, image: MemoryImage, model: GPT2Config) -> None:
    """Follow a board's weight stream through one token."""
    core, registers = program.core, program.registers
    tile, lanes, per_lane = core.tile, core.lanes, core.channels_per_lane
    files = [np.fromfile(path, np.uint16).reshape(-1, core.port_bytes // 2) for path in image.files]
    rows = np.stack([np.concatenate(files[n * per_lane : (n + 1) * per_lane], axis=1) for n in range(lanes)], axis=1)
    code = [Instruction.decode(word) for word in program.instructions]
    gathers = [i for i in code if i.op == Op.GATHER]
    attention, x, inner = gathers[0], gathers[1], gathers[2]
    queries = next(i for i in code if i.op == Op.SC).src * core.strips_per_word
    pointer, loop = registers["weight_base"], next(n for n, i in enumerate(code) if i.op == Op.LOOP)
    body = range(loop + 1, loop + 1 + code[loop].words)
    order = [(layer, n) for layer in range(model.n_layer) for n in body]
    order += [(0, n) for n in range(body.stop, len(code) - 1)]
    open_tiles: dict[int, list[tuple[int, int, np.ndarray]]] = {}
    open_params: dict[int, dict[tuple[int, int], np.ndarray]] = {}
    slices = program.notes["slices"]
    assert isinstance(slices, dict)
    for layer, n in order:
        i = code[n]
        if i.op != Op.MM:
            continue
        if i.first:
            open_tiles[i.acc], open_params[i.acc] = [], {}
        tiles, params = open_tiles[i.acc], open_params[i.acc]
        for g0 in range(0, i.strips, i.group):
            for w in range(i.words):
                for s in range(g0, min(g0 + i.group, i.strips)):
                    if i.first and w == 0 and s % core.param_strips == 0:
                        for kind in range(2 if i.params == Params.NORM else 1):
                            params[kind, s] = np.ascontiguousarray(rows[pointer]).view(np.float32)
                            pointer += 1
                    tiles.append((i.src + w, s, rows[pointer].view(np.float16)))
                    pointer += 1
        if not i.last:
            continue
        product = _product(i, i.src, inner.dst // core.strips_per_word)
        base = {"projection": attention.dst, "feed_out": inner.dst}.get(product, x.dst) // core.strips_per_word
        first = {
            "queries": i.dst - queries,
            "projection": i.dst,
            "feed_out": i.dst,
            "feed_in": i.dst - inner.dst,
            "head": registers["token_offset"] // lanes + i.dst,
        }.get(product, 0)
        size = (registers["key_words"] * tile) if product in ("keys", "queries") else 0
        key, shape = (product, layer), _size(product, model)
        padded = (-(-shape[0] // tile) * tile, shape[1] + size * 64 + tile * lanes)
        matrix = rebuilt.matrices.setdefault(key, np.zeros(padded, np.float16))
        counts = rebuilt.counts.setdefault(key, np.zeros(padded, np.int32))
        bias = rebuilt.bias.setdefault(key, np.zeros(padded[1], np.float32))
        sums = rebuilt.sums.setdefault(key, np.zeros(padded[1], np.float32))

        def columns(strip: int, *, of: str = product, start: int = first, padding: int = size) -> np.ndarray:
            """Where a strip's columns belong in the model's matrix; -1 for the padding of heads."""
            local = np.arange(lanes) + (strip + start) * lanes
            if of in PARTS:
                heads = slices["heads"]["first"]
                if of == "values":
                    return local + heads * model.head_size
                head, inside = local // padding, local % padding
                return np.where(inside < model.head_size, (heads + head) * model.head_size + inside, -1)
            return local

        for word, strip, values in tiles:
            at = columns(strip)
            part = values[at >= 0].T
            assert not values[at < 0].any()
            matrix[(word - base) * tile : (word - base + 1) * tile, at[at >= 0]] += part
            counts[(word - base) * tile : (word - base + 1) * tile, at[at >= 0]] += 1
        for (kind, s0), block in params.items():
            for k in range(min(core.param_strips, i.strips - s0)):
                at = columns(s0 + k)
                (sums if kind else bias)[at[at >= 0]] += block[at >= 0, k]
    assert pointer == registers["weight_base"] + sum(
        region.bytes // core.port_bytes for region in program.regions if region.name == "weights" and not region.channel
    )


def _rebuild(ring: CompiledRing, model: GPT2Config) -> _Rebuilt:
    rebuilt = _Rebuilt()
    for program, image in ring.boards:
        _read(rebuilt, program, image, model)
    return rebuilt


def _wanted(weights: SeededCheckpoint, product: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """gamma * W as fp16 and b + beta @ W in float64."""
    width = weights.config.n_embd
    if product == "head":
        matrix, norm, bias = weights.tensor("wte.weight").T, "ln_f", np.zeros(weights.config.vocab_size)
    else:
        name = {"projection": "attn.c_proj", "feed_in": "mlp.c_fc", "feed_out": "mlp.c_proj"}.get(
            product, "attn.c_attn"
        )
        matrix, bias = (weights.tensor(f"h.{layer}.{name}.{leaf}") for leaf in ("weight", "bias"))
        norm = {"feed_in": f"h.{layer}.ln_2"}.get(product, f"h.{layer}.ln_1" if product in PARTS else "")
        if product in PARTS:
            part = slice(PARTS[product] * width, (PARTS[product] + 1) * width)
            matrix, bias = matrix[:, part], bias[part]
    if not norm:
        return matrix.astype(np.float16), bias.astype(np.float64)
    gamma, beta = weights.tensor(f"{norm}.weight"), weights.tensor(f"{norm}.bias").astype(np.float64)
    return (matrix * gamma[:, None]).astype(np.float16), bias + beta @ matrix.astype(np.float64)


def _differences(rebuilt: _Rebuilt, weights: SeededCheckpoint) -> list[str]:
    """What is not the model's, in words."""
    config, found = weights.config, []
    products = [(p, n) for n in range(config.n_layer) for p in (*PARTS, "projection", "feed_in", "feed_out")]
    for key in [*products, ("head", 0)]:
        rows, columns = _size(key[0], config)
        matrix, bias = _wanted(weights, *key)
        if not np.array_equal(rebuilt.matrices[key][:rows, :columns], matrix):
            found.append(f"{key}: weights")
        if (rebuilt.counts[key][:rows, :columns] != 1).any():
            found.append(f"{key}: not every weight once")
        if rebuilt.matrices[key][rows:].any() or rebuilt.matrices[key][:, columns:].any():
            found.append(f"{key}: padding is not zero")
        if not np.allclose(rebuilt.bias[key][:columns], bias, rtol=1e-6, atol=1e-9):
            found.append(f"{key}: bias")
        if key[0] not in ("projection", "feed_out"):
            sums = matrix.sum(axis=0, dtype=np.float64).astype(np.float32)
            if not np.array_equal(rebuilt.sums[key][:columns], sums):
                found.append(f"{key}: column sums")
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_weight_stands_once_where_it_is_read(name: str, tmp_path: Path) -> None:
    config, core, boards, partition = CASES[name]
    weights = SeededCheckpoint(config, 6)
    ring = compile_ring(weights, core, tmp_path / "out", boards, partition=partition)
    assert _differences(_rebuild(ring, config), weights) == []


def test_twins_another_place_or_a_weight_twice_shows(tmp_path: Path) -> None:
    weights = SeededCheckpoint(FIVE, 6)
    ring = compile_ring(weights, SMALL, tmp_path / "out", 3)
    (first, image), *others = ring.boards
    words = list(first.instructions)
    place = next(n for n, w in enumerate(words) if Instruction.decode(w).commit == Commit.KEYS)
    keys = Instruction.decode(words[place])
    words[place] = dataclasses.replace(keys, src=keys.src - 1).encode()
    moved = dataclasses.replace(first, instructions=tuple(words))
    found = _differences(_rebuild(CompiledRing(ring.plan, ((moved, image), *others)), FIVE), weights)
    assert found == [f"('keys', {layer}): {what}" for layer in (0, 1) for what in ("weights", "not every weight once")]
    twice = CompiledRing(ring.plan, (ring.boards[0], ring.boards[1], ring.boards[1]))
    assert any("once" in line for line in _differences(_rebuild(twice, FIVE), weights))
    other = SeededCheckpoint(FIVE, 7)
    assert len(_differences(_rebuild(ring, FIVE), other)) > 13


class _Counting(SeededCheckpoint):
    """Counts how often each tensor is read."""

    def __init__(self, config: GPT2Config, seed: int) -> None:
        super().__init__(config, seed)
        self.reads: Counter[str] = Counter()

    def tensor(self, name: str) -> np.ndarray:
        self.reads[name] += 1
        return super().tensor(name)


def test_a_matrix_is_read_once_for_all_boards(tmp_path: Path) -> None:
    weights = _Counting(FIVE, 6)
    compile_ring(weights, SMALL, tmp_path / "out", 4)
    matrices = {
        name: reads for name, reads in weights.reads.items() if super(_Counting, weights).tensor(name).ndim == 2
    }
    assert matrices == {name: 2 if name == "wte.weight" else 1 for name in matrices} and len(matrices) == 10
    single = _Counting(FIVE, 6)
    compile_model(single, SMALL, tmp_path / "one")
    assert {name: single.reads[name] for name in matrices} == matrices


def test_embeddings_stand_whole_on_every_board_and_heads_keep_their_keys(tmp_path: Path) -> None:
    weights = SeededCheckpoint(FIVE, 6)
    one, image = compile_model(weights, SMALL, tmp_path / "one", seeded_positions=17, kv_seed=3)
    even = Partition.even(FIVE, 3)
    ring = compile_ring(weights, SMALL, tmp_path / "ring", 3, partition=even, seeded_positions=17, kv_seed=3)

    def region(program: Program, image: MemoryImage, name: str, channel: int) -> np.ndarray:
        [place] = [r for r in program.regions if r.name == name and r.channel == channel]
        data = np.fromfile(image.files[channel], np.uint16)
        return data[place.offset // 2 : (place.offset + place.bytes) // 2]

    for program, board_image in ring.boards:
        assert program.notes["cached_positions"] == 17
        for name in ("position_embedding", "token_embedding"):
            for channel in range(4):
                assert np.array_equal(region(program, board_image, name, channel), region(one, image, name, channel))
    # head 2 of the model is head 0 of board 1, so its slots are not rotated there
    given = SeededKeyValues(FIVE, 17, 3)
    program, board_image = ring.boards[1]
    assert program.notes["slices"]["heads"] == {"first": 2, "count": 2}  # type: ignore[index]
    keys = np.stack([region(program, board_image, "keys", channel) for channel in range(4)]).view(np.float16)
    rows = keys.reshape(4, FIVE.n_layer, 2, -1, 16)  # [lane, layer, head, group of positions, dim]
    for position in range(17):
        stored = rows[position % 4, 1, 0, position // 4, : FIVE.head_size]
        assert np.array_equal(stored, given.keys(1)[2, position])
        assert not np.array_equal(stored, given.keys(1)[0, position])  # twin: another head's
