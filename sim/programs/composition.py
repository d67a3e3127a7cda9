"""Puts a random program together: the vector, the layer with attention, snippets around them, the logits."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Path

from .hazards import DISTANCES, Cell, legal_cells
from .program_builder import ProgramBuilder, Shape
from .snippets import append_snippet, layer_plan, needs_attention, needs_plan, spans_layers

__all__ = ["compose", "wanted_cells"]

_ATTENTION, _PLAIN = 4, 4
"""Wanted cells of a program with and without attention, besides the one that its layer plan hits."""


def wanted_cells(seed: int, config: CoreConfig) -> tuple[Cell, list[Cell]]:
    """Cells for a seed on a core: seeds in a row go through all of them in turn."""
    cells = legal_cells(config)
    random.Random(0).shuffle(cells)
    planned = [cell for cell in cells if needs_plan(cell)]
    attention = [cell for cell in cells if not needs_plan(cell) and needs_attention(cell)]
    plain = [cell for cell in cells if not needs_plan(cell) and not needs_attention(cell)]
    plan = planned[seed % len(planned)]
    few = 0 if "AV" not in layer_plan(plan, 0) else _ATTENTION  # such a layer must be left as it is
    wanted = [attention[(seed * _ATTENTION + i) % len(attention)] for i in range(few)]
    return plan, wanted + [plain[(seed * _PLAIN + i) % len(plain)] for i in range(_PLAIN + _ATTENTION - few)]


def _shape(config: CoreConfig, rng: random.Random, layers: int) -> Shape:
    s = config.strips_per_word
    vector_strips = rng.randint(s, 3 * s)
    heads = rng.randint(1, 4)
    return Shape(
        layers=layers,
        heads=heads,
        key_words=rng.randint(1, max(1, min(2, config.new_key_words // heads))),
        value_strips=rng.randint(1, max(1, min(2 * s, config.new_value_strips // heads, config.acc_depth // 16))),
        width=vector_strips * config.lanes - rng.choice([0, 0, rng.randint(1, config.lanes - 1)]),
        vector_strips=vector_strips,
        context_limit=rng.randint(10, min(48, config.context)),
    )


def _prologue(builder: ProgramBuilder) -> None:
    """The vector x at word 0, in one of two ways, and LayerNorm scalars."""
    strips, rng = builder.shape.vector_strips, builder.rng
    split = rng.random() < 0.5
    common = {"words": 1, "tail": builder.config.tile, "strips": strips, "acc": builder.accumulator(strips)}
    common["group"] = strips if split else builder.group(strips)
    builder.append(Op.EMB, operand=Operand.POSITION, last=int(not split), **common)
    path = Path.PLAIN if split else Path.RESIDUAL
    builder.append(Op.EMB, operand=Operand.TOKEN, first=int(not split), path=path, stats=1, **common)
    builder.norms.append(0)
    if rng.random() < 0.7:
        region = builder.region(-(-strips // builder.config.strips_per_word))
        builder.fill(region, stats=1, stats_set=1)
        builder.sources.append(region)


def _loop(builder: ProgramBuilder, count: int, body: Callable[[], None]) -> None:
    start = len(builder.code)
    builder.append(Op.LOOP, strips=count)
    body()
    builder.code[start] = dataclasses.replace(builder.code[start], words=len(builder.code) - start - 1)


def _layer(builder: ProgramBuilder, planned: Cell, cells: list[Cell]) -> None:
    """The loop that holds attention: a plan that hits ``planned``, and snippets for ``cells``."""
    s, shape, rng = builder.config.strips_per_word, builder.shape, builder.rng
    heads = rng.randint(1, shape.heads)
    query = builder.query(heads)
    results = builder.region(-(-heads * shape.value_strips // s))
    plan = layer_plan(planned, DISTANCES.index(planned.distance))
    builder.complete(results, heads * shape.value_strips if "AV" in plan else 0)
    snippets = ["SNIPPET"] * len(cells)
    if spans_layers(planned):
        at = plan.index("VALUES") + 1
        plan = [*plan[:at], *snippets, *plan[at:]]
    else:
        plan = [*rng.choice([[], ["QUERY"], ["FILL"], ["FILL", "QUERY"]]), *plan, *snippets]
    pending = list(cells)

    def body() -> None:
        builder.scores = None
        for step in plan:
            if step == "KEYS":
                builder.keys()
            elif step == "VALUES":
                builder.values()
            elif step == "FILL":
                builder.filler()
            elif step == "QUERY":
                builder.fill(query)
            elif step == "AV":
                builder.av(results.word * s, heads)
            elif step == "SNIPPET":
                append_snippet(builder, pending.pop())
            else:
                builder.sc(query.word, heads, builder.tail(), same_words=step == "SC again")

    _loop(builder, shape.layers, body)
    builder.sources += [query, results]


def _head(builder: ProgramBuilder) -> int:
    """LOGITS products over everything that was written; returns the strips of the logits."""
    c, rng = builder.config, builder.rng
    operands = [(region.word, region.words, c.tile) for region in builder.written_words()]
    operands.insert(rng.randint(0, len(operands)), builder.vector())
    first = 0
    for number, operand in enumerate(operands):
        strips = builder.paired(rng.randint(1, 3 * c.strips_per_word))
        commit = Commit.TOKEN if number == len(operands) - 1 else Commit.NONE
        builder.mm(first, strips, source=operand, path=Path.LOGITS, commit=commit)
        first += strips
    return first


def compose(config: CoreConfig, seed: int, rng: random.Random) -> tuple[list[Instruction], Shape, int]:
    """Instructions of a seed's program, the sizes that they share, and the strips of the logits."""
    planned, cells = wanted_cells(seed, config)
    shape = _shape(config, rng, rng.randint(2, 3) if spans_layers(planned) else rng.randint(1, 3))
    builder = ProgramBuilder(config, shape, rng)
    _prologue(builder)
    attention = [cell for cell in cells if needs_attention(cell)]
    plain = [cell for cell in cells if not needs_attention(cell)]

    def take(count: int) -> None:
        for _ in range(min(count, len(plain))):
            append_snippet(builder, plain.pop())

    take(rng.randint(0, 1))
    if rng.random() < 0.4 and plain:
        _loop(builder, rng.randint(1, 3), lambda: take(1))
    hidden = builder.region(1, low=False)
    _layer(builder, planned, attention)
    take(rng.randint(0, 1))
    while len(builder.code) < 16:
        builder.filler()
    builder.decode_only = 1
    builder.fill(hidden)
    take(len(plain))
    strips = _head(builder)
    builder.decode_only = 0
    builder.append(Op.NEXT)
    return builder.code, shape, strips
