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
from hw.board.gpt2_map import gpt2_register_map, row_register
from hw.board.program import Program, Region
from hw.bus.registers import RegisterMap
from hw.gpt2.access import derive_access, param_rows
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Instruction, Op, Params
from hw.gpt2.legality import check_program
from hw.numerics.norm_scalars import norm_eps_term

from .composition import compose, wanted_cells
from .hazards import Cell, executed
from .image_builder import ImageBuilder, write_image
from .random_run import random_run

__all__ = ["CaseResult", "RandomCase", "await_end", "random_case", "run_case", "start_case"]


_INT8_STEP = 1 / 73  # a weight of all bytes alike has this deviation: with such scales products are about 1


@dataclasses.dataclass(frozen=True)
class RandomCase:
    """A program with all that one run needs.

    ``channels`` is the image in half words (channels, any); ``run_registers`` are those that belong to the run
    (``position``, ``prompt_end``, ``max_new_tokens``, ``flags``, stop ids); ``tokens`` fill the token window from 0 on,
    ``row_tokens`` those of rows 1 and on.
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
    row_tokens: tuple[tuple[int, ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """What a run left: tokens, SHA-256 of all logits regions, of all keys and values, error and its info, tiles.

    ``row_tokens`` are the tokens of rows 1 and on.
    """

    tokens: tuple[int, ...]
    logits: str
    keys_values: str
    error: int
    tiles: int
    info: int
    row_tokens: tuple[tuple[int, ...], ...]


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
        shape = (mm.strips // config.mm_strips * mm.words, config.lanes, config.tile)
        scale = 1 / np.sqrt(mm.words * config.tile)
        blocks = (param_rows(mm, config), config.lanes, config.param_strips)
        if config.has_int8:
            tiles = rng.integers(0, 1 << 16, shape, np.uint16)
            params = _int8_params(mm, blocks, scale * _INT8_STEP, rng).view(np.uint16)
        else:
            tiles = (rng.standard_normal(shape) * scale).astype(np.float16).view(np.uint16)
            params = (rng.standard_normal(blocks) * 0.5).astype(np.float32).view(np.uint16)
        rows.append(_interleaved(mm, tiles, params, config))
        spans[id(mm)] = (start, len(rows[-1]))
        start += len(rows[-1])
    return np.concatenate(rows), tuple(spans.values())


def _int8_params(
    mm: Instruction, blocks: tuple[int, int, int], scale: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Parameter rows of int8 weights: scales, with BIAS where sums of integers start, with NORM b' and column sums."""
    rows = rng.standard_normal(blocks) * 0.5
    kinds = _parameter_kinds(mm, True)
    rows[::kinds] = scale * rng.uniform(0.5, 1.5, rows[::kinds].shape)
    if mm.params == Params.BIAS:
        rows[1::kinds] /= rows[::kinds]
    return rows.astype(np.float32)


def _parameter_kinds(mm: Instruction, int8: bool) -> int:
    """Parameter rows of a block."""
    return int8 + {Params.NONE: 0, Params.BIAS: 1, Params.NORM: 2}[Params(mm.params)]


def _interleaved(
    mm: Instruction, tiles: NDArray[np.uint16], params: NDArray[np.uint16], config: CoreConfig
) -> NDArray[np.uint16]:
    """Tiles with parameter rows before the strips that need them (docs/core.md, section 3)."""
    if not len(params):
        return tiles
    per_block = _parameter_kinds(mm, config.has_int8)
    out: list[NDArray[np.uint16]] = []
    tile, block = 0, 0
    for g0 in range(0, mm.strips, mm.group):
        strips = range(g0, min(g0 + mm.group, mm.strips), config.mm_strips)
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
    run = random_run(shape, vocab, config, rng)
    image = ImageBuilder(config)

    def table(entries: int, nan_entry: int | None = None) -> int:
        count = -(-entries // config.tile) * shape.vector_strips
        values = data.standard_normal((count, config.lanes, config.tile)).astype(np.float16)
        if nan_entry is not None:
            values[nan_entry // config.tile * shape.vector_strips, 0, nan_entry % config.tile] = np.nan
        return image.append(values.view(np.uint16))

    weights, product_rows = _rows_of(instructions, config, data)
    weight_base = image.append(weights)
    position_base, token_base = table(shape.context_limit), table(vocab, run.nan_token)
    key_rows = -(-shape.context_limit // config.lanes) * shape.key_words
    value_rows = -(-shape.context_limit // config.tile) * shape.value_strips
    logits_rows = -(-logit_strips * config.lanes // (config.channels * config.port_bytes // 4))
    keys, values = shape.layers * shape.heads * key_rows, shape.layers * shape.heads * value_rows
    logits = shape.context_limit * logits_rows
    first_keys, first_logits = image.rows, image.rows + config.rows * (keys + values)
    bases = [
        {
            "key_base": first_keys + row * (keys + values),
            "value_base": first_keys + row * (keys + values) + keys,
            "logits_base": first_logits + row * logits,
        }
        for row in range(config.rows)
    ]
    if any(run.past):  # keys and values of all positions belong to the image
        for past in run.past:
            size = (keys + values, config.lanes, config.tile)
            given = data.standard_normal(size).astype(np.float16) if past else np.full(size, np.nan, np.float16)
            image.append(given.view(np.uint16))
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
        "key_layer_rows": shape.heads * key_rows,
        "key_head_rows": key_rows,
        "value_layer_rows": shape.heads * value_rows,
        "value_head_rows": value_rows,
        "logits_rows": logits_rows,
        **{row_register(name, row): base for row, own in enumerate(bases) for name, base in own.items()},
    }
    broken = check_program(instructions, registers, config)
    if broken:
        raise RuntimeError(f"random program of seed {seed} for core {config.name} is illegal: " + "; ".join(broken))
    port = config.port_bytes
    end = first_logits + config.rows * logits
    regions = tuple(
        Region(row_register(kind, row), kind, channel, start * port, count * port)
        for channel in range(config.channels)
        for row, own in enumerate(bases)
        for kind, start, count in (
            ("keys", own["key_base"], keys),
            ("values", own["value_base"], values),
            ("logits", own["logits_base"], logits),
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
    run_registers = run.registers | (bases[run.cache] if run.cache else {})
    planned, cells = wanted_cells(seed, config)
    return RandomCase(
        seed=seed,
        program=program,
        instructions=tuple(instructions),
        channels=image.channels(),
        channel_bytes=end * port,
        tokens=run.tokens[0],
        run_registers=run_registers,
        product_rows=product_rows,
        wanted=(planned, *cells),
        row_tokens=run.tokens[1:],
    )


def start_case(case: RandomCase, board: BoardModel) -> None:
    """Write the case's tokens and run registers to a loaded board and start it."""
    table = gpt2_register_map(case.program.core)
    for row, tokens in enumerate((case.tokens, *case.row_tokens)):
        window = table.window(row_register("tokens", row))
        for index, token in enumerate(tokens):
            board.write_register(window.offset + window.stride * index, token)
    for name, value in case.run_registers.items():
        board.write_register(table[name].offset, value, table[name].bits // 8)
    board.write_register(table["ctrl"].offset, 1)


def await_end(case: RandomCase, board: BoardModel, max_cycles: int) -> CaseResult:
    """Let a started case run to its end and read what it left.

    Raises BoardError; BoardStuckError if the board makes no progress, or after ``max_cycles`` (if it counts cycles).
    """
    table = gpt2_register_map(case.program.core)
    cycles = 0
    while not board.read_register(table["ctrl"].offset) & 2:
        if cycles >= max_cycles:
            raise BoardStuckError(f"random case {case.seed} has not ended after {cycles} cycles")
        cycles += board.advance(max_cycles)
    digest = hashlib.sha256()
    for region in case.program.regions_of("logits"):
        digest.update(board.read_memory(region.channel, region.offset, region.bytes))
    tokens, *row_tokens = (_valid_tokens(board, table, row) for row in range(case.program.core.rows))
    return CaseResult(
        tokens=tokens,
        logits=digest.hexdigest(),
        keys_values=board.kv_hash(),
        error=board.read_register(table["error"].offset),
        tiles=board.read_register(table["tiles"].offset, 8),
        info=board.read_register(table["error_info"].offset),
        row_tokens=tuple(row_tokens),
    )


def _valid_tokens(board: BoardModel, table: RegisterMap, row: int) -> tuple[int, ...]:
    window = table.window(row_register("tokens", row))
    valid = board.read_register(table[row_register("tokens_valid", row)].offset)
    return tuple(board.read_register(window.offset + window.stride * i) for i in range(valid))


def run_case(case: RandomCase, board: BoardModel, folder: pathlib.Path, max_cycles: int = 1_000_000) -> CaseResult:
    """Load a case and run it to its end; ``folder`` takes the image files, which the board may keep mapped.

    So two boards that are read afterwards need two folders. Raises what ``await_end`` raises.
    """
    board.load(case.program, write_image(list(case.channels), case.channel_bytes, folder))
    start_case(case, board)
    return await_end(case, board, max_cycles)
