"""Seeded random legal programs with data, and how to run them on any board."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BoardModel, BoardStuckError
from hw.board.gpt2_map import Flags, gpt2_register_map
from hw.board.program import Program, Region
from hw.gpt2.access import derive_access, param_rows
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Instruction, Op, Params
from hw.gpt2.legality import check_program
from hw.numerics.norm_scalars import norm_eps_term

from .composition import compose, wanted_cells
from .hazards import Cell, executed
from .image_builder import ImageBuilder, write_image
from .program_builder import Shape

__all__ = ["CaseResult", "RandomCase", "await_end", "random_case", "run_case", "start_case"]


@dataclasses.dataclass(frozen=True)
class RandomCase:
    """A program with all that one run needs.

    ``channels`` is the image in half words (channels, any); ``run_registers`` are those that belong to the run
    (``position``, ``prompt_end``, ``max_new_tokens``, ``flags``, stop ids); ``tokens`` fill the token window from 0 on.
    ``product_rows`` are first row and number of rows of what each MM streams when it is executed for the last time in
    a position; ``wanted`` are the cells aimed at.
    """

    seed: int
    program: Program
    instructions: tuple[Instruction, ...]
    channels: NDArray[np.uint16]
    channel_bytes: int
    tokens: tuple[int, ...]
    run_registers: dict[str, int]
    product_rows: tuple[tuple[int, int], ...]
    wanted: tuple[Cell, ...]


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """What a run left: tokens, SHA-256 of the whole logits region, of keys and values, error register, tiles."""

    tokens: tuple[int, ...]
    logits: str
    keys_values: str
    error: int
    tiles: int


def _rows_of(
    instructions: Sequence[Instruction], config: CoreConfig, rng: np.random.Generator
) -> tuple[NDArray[np.uint16], tuple[tuple[int, int], ...]]:
    """Weight rows of one position in the order of the stream, and where the last ones of each MM are."""
    rows: list[NDArray[np.uint16]] = []
    spans: dict[int, tuple[int, int]] = {}
    start = 0
    for mm in executed(instructions):
        if mm.op != Op.MM:
            continue
        shape = (mm.strips * mm.words, config.lanes, config.tile)
        scale = 1 / np.sqrt(mm.words * config.tile)
        tiles = (rng.standard_normal(shape) * scale).astype(np.float16).view(np.uint16)
        blocks = (param_rows(mm, config), config.lanes, config.param_strips)
        params = (rng.standard_normal(blocks) * 0.5).astype(np.float32).view(np.uint16)
        rows.append(_interleaved(mm, tiles, params, config))
        spans[id(mm)] = (start, len(rows[-1]))
        start += len(rows[-1])
    return np.concatenate(rows), tuple(spans.values())


def _interleaved(
    mm: Instruction, tiles: NDArray[np.uint16], params: NDArray[np.uint16], config: CoreConfig
) -> NDArray[np.uint16]:
    """Tiles with parameter rows before the strips that need them (docs/core.md, section 3)."""
    if not len(params):
        return tiles
    per_block = 2 if mm.params == Params.NORM else 1
    out: list[NDArray[np.uint16]] = []
    tile, block = 0, 0
    for g0 in range(0, mm.strips, mm.group):
        strips = range(g0, min(g0 + mm.group, mm.strips))
        for s in strips:
            if s % config.param_strips == 0:
                out.append(params[block : block + per_block])
                block += per_block
            out.append(tiles[tile : tile + 1])
            tile += 1
        rest = (mm.words - 1) * len(strips)
        out.append(tiles[tile : tile + rest])
        tile += rest
    return np.concatenate(out)


def random_case(seed: int, config: CoreConfig) -> RandomCase:
    """The case of a seed: the same for ever for one version of this package, legal by ``check_program``.

    Raises RuntimeError if the program turns out illegal: that would be a defect of this package.
    """
    rng = random.Random(seed)
    instructions, shape, logit_strips = compose(config, seed, rng)
    data = np.random.default_rng(seed)
    vocab = logit_strips * config.lanes - rng.randint(0, config.lanes - 1)
    image = ImageBuilder(config)

    def table(entries: int) -> int:
        count = -(-entries // config.tile) * shape.vector_strips
        values = data.standard_normal((count, config.lanes, config.tile)).astype(np.float16)
        return image.append(values.view(np.uint16))

    weights, product_rows = _rows_of(instructions, config, data)
    weight_base = image.append(weights)
    position_base, token_base = table(shape.context_limit), table(vocab)
    key_rows = -(-shape.context_limit // config.lanes) * shape.key_words
    value_rows = -(-shape.context_limit // config.tile) * shape.value_strips
    key_base = image.rows
    value_base = key_base + shape.layers * shape.heads * key_rows
    logits_base = value_base + shape.layers * shape.heads * value_rows
    row_floats = config.channels * config.port_bytes // 4
    logits_rows = -(-logit_strips * config.lanes // row_floats)
    run = _run_registers(shape, vocab, rng)
    if run["position"]:  # the past is given: keys and values of all positions belong to the image
        past = data.standard_normal((logits_base - key_base, config.lanes, config.tile)).astype(np.float16)
        image.append(past.view(np.uint16))
    registers = {
        "context_limit": shape.context_limit,
        "width": shape.width,
        "eps_term": norm_eps_term(1e-5, shape.width),
        "score_scale": int(np.float32(1 / np.sqrt(shape.key_words * config.tile)).view(np.uint32)),
        "vocab": vocab,
        "layers": shape.layers,
        "heads": shape.heads,
        "key_words": shape.key_words,
        "value_strips": shape.value_strips,
        "weight_base": weight_base,
        "position_base": position_base,
        "token_base": token_base,
        "embed_strips": shape.vector_strips,
        "key_base": key_base,
        "key_layer_rows": shape.heads * key_rows,
        "key_head_rows": key_rows,
        "value_base": value_base,
        "value_layer_rows": shape.heads * value_rows,
        "value_head_rows": value_rows,
        "logits_base": logits_base,
        "logits_rows": logits_rows,
    }
    broken = check_program(instructions, registers, config)
    if broken:
        raise RuntimeError(f"random program of seed {seed} for core {config.name} is illegal: " + "; ".join(broken))
    port = config.port_bytes
    end = logits_base + shape.context_limit * logits_rows
    regions = tuple(
        Region(name, name, channel, start * port, (stop - start) * port)
        for channel in range(config.channels)
        for name, start, stop in (
            ("keys", key_base, value_base),
            ("values", value_base, logits_base),
            ("logits", logits_base, end),
        )
    )
    program = Program(
        core=config,
        model_digest=f"random-{seed}",
        board=0,
        boards=1,
        instructions=tuple(i.encode() for i in instructions),
        descriptors=tuple(a.encode() for a in derive_access(instructions, config)),
        regions=regions,
        registers=registers,
    )
    tokens = tuple(rng.randrange(vocab) for _ in range(run["prompt_end"]))
    planned, cells = wanted_cells(seed)
    return RandomCase(
        seed, program, tuple(instructions), image.channels(), end * port, tokens, run, product_rows, (planned, *cells)
    )


def _run_registers(shape: Shape, vocab: int, rng: random.Random) -> dict[str, int]:
    """A run of two or more positions; some start with a past, some end with the cache full, few at a stop id."""
    limit = shape.context_limit
    position = rng.randint(1, limit - 3) if rng.random() < 0.4 else 0
    prompt_end = rng.randint(position + 1, min(position + 4, limit - 1))
    steps = limit if rng.random() < 0.1 else rng.randint(2, 6)
    stops = {f"stop_{i}": rng.randrange(vocab) for i in range(4)}
    return {
        "position": position,
        "prompt_end": prompt_end,
        "max_new_tokens": steps,
        "flags": int(Flags.WRITE_LOGITS),
        "stop_count": rng.choice([0, 0, 0, 0, 1, 4]),
        **stops,
    }


def start_case(case: RandomCase, board: BoardModel) -> None:
    """Write the case's tokens and run registers to a loaded board and start it."""
    table = gpt2_register_map(case.program.core)
    window = table.window("tokens")
    for index, token in enumerate(case.tokens):
        board.write_register(window.offset + window.stride * index, token)
    for name, value in case.run_registers.items():
        board.write_register(table[name].offset, value)
    board.write_register(table["ctrl"].offset, 1)


def await_end(case: RandomCase, board: BoardModel, max_cycles: int) -> CaseResult:
    """Let a started case run to its end and read what it left.

    Raises BoardError; BoardStuckError if the board makes no progress, or after ``max_cycles`` (if it counts cycles).
    """
    table = gpt2_register_map(case.program.core)
    window = table.window("tokens")
    cycles = 0
    while not board.read_register(table["ctrl"].offset) & 2:
        if cycles >= max_cycles:
            raise BoardStuckError(f"random case {case.seed} has not ended after {cycles} cycles")
        cycles += board.advance(max_cycles)
    valid = board.read_register(table["tokens_valid"].offset)
    digest = hashlib.sha256()
    for region in case.program.regions_of("logits"):
        digest.update(board.read_memory(region.channel, region.offset, region.bytes))
    return CaseResult(
        tokens=tuple(board.read_register(window.offset + window.stride * i) for i in range(valid)),
        logits=digest.hexdigest(),
        keys_values=board.kv_hash(),
        error=board.read_register(table["error"].offset),
        tiles=board.read_register(table["tiles"].offset, 8),
    )


def run_case(case: RandomCase, board: BoardModel, folder: pathlib.Path, max_cycles: int = 1_000_000) -> CaseResult:
    """Load a case and run it to its end; ``folder`` takes the image files. Raises what ``await_end`` raises."""
    board.load(case.program, write_image(list(case.channels), case.channel_bytes, folder))
    start_case(case, board)
    return await_end(case, board, max_cycles)
