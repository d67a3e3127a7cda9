"""Seeded random legal programs for rings of boards, with data, and how to run them on any boards."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BoardModel
from hw.board.gpt2_map import Flags
from hw.board.program import Program, Region
from hw.gpt2.access import derive_access
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Instruction, Op, Params
from hw.gpt2.legality import check_program
from hw.gpt2.ring_set import check_ring
from hw.numerics.norm_scalars import norm_eps_term

from .image_builder import ImageBuilder, int8_tiles, param_block, weight_tiles, write_image
from .program_builder import paired
from .random_case import CaseResult, RandomCase, await_end, start_case
from .ring_model import RingModel, ring_model
from .ring_program import Slices, Streamed, board_program, random_slices

__all__ = ["RingCase", "board_cases", "board_logits", "on_one_board", "random_ring_case", "ring_sizes", "run_ring_case"]

_LINK_LIMIT = 1_000_000


@dataclasses.dataclass(frozen=True)
class RingCase:
    """One run of several boards: ``boards`` are their programs, images and run registers, in order of the ring."""

    seed: int
    model: RingModel
    slices: Slices
    boards: tuple[RandomCase, ...]


def ring_sizes(seed: int) -> int:
    """Boards of a seed: 2 to 4 mostly, 5 and 8 now and then."""
    return (2, 3, 4, 2, 3, 4, 5, 2, 3, 8)[seed % 10]


def random_ring_case(seed: int, config: CoreConfig, boards: int, exact: bool = False) -> RingCase:
    """The case of a seed: the same for ever for one version of this package, legal by check_program and check_ring.

    ``exact``: all sums have one term and the run begins at position 0, so that any number of boards, one too, computes
    the same logits from ``board_cases`` of the same model. Raises RuntimeError if a program turns out illegal: that
    would be a defect of this package.
    """
    model = ring_model(seed, config, boards, exact)
    rng = random.Random(f"slices {seed} {boards}")
    heads = random_slices(model.shape.heads, boards, rng)
    per_head = model.shape.value_strips
    vectors = {}
    for name, vector in sorted(model.vectors.items()):
        if vector.shared:
            pair = 1 if name == "attention" else config.mm_strips
            cut = random_slices(vector.strips // pair, boards, rng)
            vectors[name] = tuple(range(pair * own.start, pair * own.stop) for own in cut)
    vectors["attention"] = tuple(range(h.start * per_head, h.stop * per_head) for h in heads)
    vocab = random_slices(model.vocab, boards, rng)
    slices = Slices(heads, vectors, vocab)
    return RingCase(seed, model, slices, board_cases(model, slices))


def board_cases(model: RingModel, slices: Slices) -> tuple[RandomCase, ...]:
    """The boards' cases of a model that is cut into slices."""
    run, tokens = _run(model)
    cases = tuple(_board_case(model, slices, board, run, tokens) for board in range(slices.boards))
    broken = [
        f"board {case.program.board}: {line}"
        for case in cases
        for line in check_program(case.instructions, case.program.registers, model.config)
    ]
    broken += check_ring([case.program for case in cases]) if slices.boards > 1 else []
    if broken:
        raise RuntimeError(
            f"random programs of seed {model.seed} for {slices.boards} boards of core {model.config.name} are illegal: "
            + "; ".join(broken)
        )
    return cases


def on_one_board(case: RingCase) -> RingCase:
    """The model of a case on one board."""
    model = case.model
    whole: dict[str, tuple[range, ...]] = {
        name: (range(vector.strips),) for name, vector in model.vectors.items() if vector.shared
    }
    slices = Slices((range(model.shape.heads),), whole, (range(model.vocab),))
    return RingCase(case.seed, model, slices, board_cases(model, slices))


def board_logits(case: RandomCase, board: BoardModel, position: int) -> NDArray[np.uint32]:
    """fp32 bit patterns of the logits of a board's own columns at a position."""
    config, registers = case.program.core, case.program.registers
    port, start = config.port_bytes, registers["logits_base"] + position * registers["logits_rows"]
    rows = [
        board.read_memory(channel, row * port, port)
        for row in range(start, start + registers["logits_rows"])
        for channel in range(config.channels)
    ]
    return np.frombuffer(b"".join(rows), "<u4")[: registers["vocab"]]


def _run(model: RingModel) -> tuple[dict[str, int], tuple[int, ...]]:
    """Run registers and tokens, the same on all boards."""
    rng = random.Random(f"run {model.seed}")
    limit = model.shape.context_limit
    position = 0 if model.exact or rng.random() < 0.6 else rng.randint(1, limit - 3)
    prompt_end = rng.randint(position + 1, min(position + 4, limit - 1))
    run = {
        "position": position,
        "prompt_end": prompt_end,
        "max_new_tokens": rng.randint(2, 4),
        "flags": int(Flags.WRITE_LOGITS),
        "stop_count": rng.choice([0, 0, 0, 0, 1]),
        **{f"stop_{i}": rng.randrange(model.vocab) for i in range(4)},
        "ring_run": model.seed & 255,
        "link_limit": _LINK_LIMIT,
    }
    return run, tuple(rng.randrange(model.vocab) for _ in range(prompt_end))


def _board_case(
    model: RingModel, slices: Slices, board: int, run: dict[str, int], tokens: tuple[int, ...]
) -> RandomCase:
    config, shape = model.config, model.shape
    instructions, streamed = board_program(model, slices, board)
    image = ImageBuilder(config)
    data = np.random.default_rng(model.seed)
    entries = {"position_base": shape.context_limit, "token_base": model.vocab}
    registers = {"weight_base": image.append(_stream(model, instructions, streamed))}
    for base, count in entries.items():
        rows = (-(-count // config.tile) * shape.vector_strips, config.lanes, config.tile)
        registers[base] = image.append(data.standard_normal(rows).astype(np.float16).view(np.uint16))
    heads, vocab = len(slices.heads[board]), slices.vocab[board]
    key_rows = -(-shape.context_limit // config.lanes) * shape.key_words
    value_rows = -(-shape.context_limit // config.tile) * shape.value_strips
    key_base = image.rows
    value_base = key_base + shape.layers * heads * key_rows
    logits_base = value_base + shape.layers * heads * value_rows
    row_floats = config.channels * config.port_bytes // 4
    logits_rows = -(-paired(-(-len(vocab) // config.lanes), config) * config.lanes // row_floats)
    if run["position"]:  # the past is given: keys and values of all positions belong to the image
        past = np.random.default_rng([model.seed, board]).standard_normal(
            (logits_base - key_base, config.lanes, config.tile)
        )
        image.append(past.astype(np.float16).view(np.uint16))
    ring = {"ring_boards": slices.boards, "ring_board": board, "ring_key": model.seed * 0x9E3779B97F4A7C15 % 2**64}
    registers |= {
        "context_limit": shape.context_limit,
        "width": shape.width,
        "eps_term": norm_eps_term(1e-5, shape.width),
        "score_scale": int(np.float32(1 / np.sqrt(shape.key_words * config.tile)).view(np.uint32)),
        "vocab": len(vocab),
        "token_offset": vocab.start,
        "layers": shape.layers,
        "heads": heads,
        "key_words": shape.key_words,
        "value_strips": shape.value_strips,
        "embed_strips": shape.vector_strips,
        "key_base": key_base,
        "key_layer_rows": heads * key_rows,
        "key_head_rows": key_rows,
        "value_base": value_base,
        "value_layer_rows": heads * value_rows,
        "value_head_rows": value_rows,
        "logits_base": logits_base,
        "logits_rows": logits_rows,
        **(ring if slices.boards > 1 else {}),
    }
    port, end = config.port_bytes, logits_base + shape.context_limit * logits_rows
    spans = (("keys", key_base, value_base), ("values", value_base, logits_base), ("logits", logits_base, end))
    program = Program(
        core=config,
        model_digest=f"random-ring-{model.seed}",
        board=board,
        boards=slices.boards,
        instructions=tuple(i.encode() for i in instructions),
        descriptors=tuple(a.encode() for a in derive_access(instructions, config)),
        regions=tuple(
            Region(name, name, channel, start * port, (stop - start) * port)
            for channel in range(config.channels)
            for name, start, stop in spans
        ),
        registers=registers,
    )
    return RandomCase(model.seed, program, tuple(instructions), image.channels(), end * port, tokens, run, (), ())


def _stream(
    model: RingModel, instructions: Sequence[Instruction], streamed: Sequence[Streamed | None]
) -> NDArray[np.uint16]:
    """Weight rows of one position in the order of the stream."""
    rows: list[NDArray[np.uint16]] = []
    index = 0
    while index < len(instructions):
        instruction, weights = instructions[index], streamed[index]
        index += 1
        if instruction.op == Op.LOOP:
            body = list(zip(instructions[index : index + instruction.words], streamed[index:], strict=False))
            for layer in range(instruction.strips):
                rows += [_run_rows(model, mm, inner, layer) for mm, inner in body if inner is not None]
            index += instruction.words
        elif weights is not None:
            rows.append(_run_rows(model, instruction, weights, 0))
    return np.concatenate(rows)


def _run_rows(model: RingModel, mm: Instruction, weights: Streamed, layer: int) -> NDArray[np.uint16]:
    """Tiles and parameter rows of one MM in its order (docs/core.md, section 3)."""
    config = model.config
    elements = slice(weights.words.start * config.tile, weights.words.stop * config.tile)
    columns = slice(weights.columns.start, weights.columns.stop)
    kinds = {Params.NONE: 0, Params.BIAS: 1, Params.NORM: 2}[Params(mm.params)]
    if config.has_int8:
        integers, params = model.int8_weights(weights.product, layer)
        tiles = int8_tiles(integers[elements, columns], config)
        kinds += 1  # the scales
    else:
        matrix, params = model.weights(weights.product, layer)
        tiles = weight_tiles(matrix[elements, columns], config)
    blocks = [param_block(line[columns], config) for line in params[:kinds]]
    out: list[NDArray[np.uint16]] = []
    for g0 in range(0, mm.strips, mm.group):
        for i in range(mm.words):
            for s in range(g0, min(g0 + mm.group, mm.strips), config.mm_strips):
                if mm.first and i == 0 and s % config.param_strips == 0:
                    out += [block[s // config.param_strips] for block in blocks]
                out.append(tiles[i, s // config.mm_strips])
    return np.stack(out)


def run_ring_case(
    case: RingCase, boards: Sequence[BoardModel], folder: pathlib.Path, max_cycles: int = 1_000_000
) -> tuple[CaseResult, ...]:
    """Load a case on the boards of one ring and run it to its end; ``folder`` takes the image files.

    Raises what ``sim.programs.random_case.await_end`` raises.
    """
    for index, (board, one) in enumerate(zip(boards, case.boards, strict=True)):
        place = folder / f"board{index}"
        place.mkdir(exist_ok=True)
        board.load(one.program, write_image(list(one.channels), one.channel_bytes, place))
    for board, one in zip(boards, case.boards, strict=True):
        start_case(one, board)
    return tuple(await_end(one, board, max_cycles) for board, one in zip(boards, case.boards, strict=True))
