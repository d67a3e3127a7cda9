"""Which dependencies between instructions a set of programs exercises, by kind and distance.

A hazard is a pair of executed instructions that touch the same thing: the later one must see, or must not disturb, what
the earlier one does. The distance counts MM, EMB, SC and AV as they are executed in one decode step (loops unrolled);
neighbours have distance 1. Only the latest earlier instruction counts: for a read the last writer (``raw``), for a
write the last readers (``war``) and the last writer (``waw``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit, Instruction, Op, Params, Path

__all__ = [
    "DISTANCES",
    "IMPOSSIBLE",
    "Cell",
    "all_cells",
    "executed",
    "hazard_table",
    "impossible_cells",
    "legal_cells",
    "program_cells",
    "table_text",
]

DISTANCES = ("1", "2", "3", "4+")

WRITERS = ("EMB", "MM plain", "MM gelu", "MM residual", "AV")
READERS = ("MM source", "addend", "SC query")
_STORES = ("EMB", "MM", "AV")


class Cell(NamedTuple):
    """One field of the table; ``hazard`` names what is shared and how."""

    hazard: str
    producer: str
    consumer: str
    distance: str


def _pairs() -> Iterator[tuple[str, str, str]]:
    for name, producers, consumers in (
        ("strip raw", WRITERS, READERS),
        ("strip war", READERS, _STORES),
        ("strip waw", _STORES, _STORES),
        ("accumulator reuse", ("MM", "EMB", "SC", "AV"), ("MM", "EMB", "SC", "AV")),
        ("split product", ("MM", "EMB"), ("MM", "EMB")),
        ("parameter reuse", ("MM",), ("MM",)),
        ("norm raw", ("MM", "EMB"), ("MM",)),
        ("norm war", ("MM",), ("MM", "EMB")),
        ("norm waw", ("MM", "EMB"), ("MM", "EMB")),
        ("probability raw", ("SC",), ("AV",)),
        ("probability war", ("AV",), ("SC",)),
        ("probability waw", ("SC",), ("SC",)),
        ("new key raw", ("KEYS",), ("SC",)),
        ("new key war", ("SC",), ("KEYS",)),
        ("new key waw", ("KEYS",), ("KEYS",)),
        ("new value raw", ("VALUES",), ("AV",)),
        ("new value war", ("AV",), ("VALUES",)),
        ("new value waw", ("VALUES",), ("VALUES",)),
        ("memory writer", ("KEYS",), ("VALUES",)),
        ("memory writer", ("VALUES",), ("KEYS",)),
    ):
        for producer in producers:
            for consumer in consumers:
                yield name, producer, consumer


IMPOSSIBLE: Mapping[Cell, str] = {
    Cell("new value war", "AV", "VALUES", "1"): "the KEYS commit of the next layer stands between them (rule 4)",
    Cell("new key waw", "KEYS", "KEYS", "1"): "the VALUES commit of the layer stands between them (rule 4)",
    Cell("new value waw", "VALUES", "VALUES", "1"): "the KEYS commit of the next layer stands between them (rule 4)",
}
"""Cells that no legal program for any core can hit, each with the reason."""


def all_cells() -> list[Cell]:
    """Every field of the table."""
    return [Cell(*pair, distance) for pair in _pairs() for distance in DISTANCES]


def impossible_cells(config: CoreConfig) -> Mapping[Cell, str]:
    """Cells that no legal program for a core can hit, each with the reason."""
    if not config.has_int8:
        return IMPOSSIBLE
    mixed = (cell for cell in all_cells() if cell.hazard == "split product" and "EMB" in (cell.producer, cell.consumer))
    why = "with int8 weights the runs of a split product are all MM, or all EMB (docs/int8.md)"
    return {**IMPOSSIBLE, **{cell: why for cell in mixed if cell.producer != cell.consumer}}


def legal_cells(config: CoreConfig) -> list[Cell]:
    """Fields that legal programs for a core can hit."""
    impossible = impossible_cells(config)
    return [cell for cell in all_cells() if cell not in impossible]


class _History:
    """Last users of the things of one kind."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.written: dict[int, tuple[int, str]] = {}
        self.read: dict[int, list[tuple[int, str]]] = {}

    def reads(self, things: Iterable[int], at: int, who: str) -> Iterator[tuple[str, int, str, str]]:
        for thing in things:
            if thing in self.written:
                yield f"{self.name} raw", *self.written[thing], who
            users = self.read.setdefault(thing, [])
            users[:] = [(when, user) for when, user in users if user != who] + [(at, who)]

    def writes(
        self, things: Iterable[int], at: int, who: str, stored: str | None = None
    ) -> Iterator[tuple[str, int, str, str]]:
        """``who`` as consumer; ``stored`` (default: the same) as producer of later hazards."""
        for thing in things:
            users = self.read.pop(thing, [])
            for when, user in users:
                yield f"{self.name} war", when, user, who
            self.read[thing] = [(when, user) for when, user in users if when == at]  # an addend is read and written
            if thing in self.written:
                when, writer = self.written[thing]
                yield f"{self.name} waw", when, writer.split()[0] if self.name == "strip" else writer, who
            self.written[thing] = (at, stored or who)


class _Tracer:
    def __init__(self, config: CoreConfig, registers: Mapping[str, int]) -> None:
        self.config = config
        self.registers = registers
        names = ("strip", "norm", "probability", "new key", "new value")
        self.history = {name: _History(name) for name in names}
        self.accumulators: dict[int, tuple[int, str]] = {}
        self.parameters: dict[int, tuple[int, str]] = {}
        self.commits: dict[str, int] = {}

    def accesses(self, at: int, i: Instruction) -> Iterator[tuple[str, int, str, str]]:
        """(hazard, when the earlier one ran, earlier kind, later kind) of one executed instruction."""
        if i.op in (Op.MM, Op.EMB):
            yield from self._product(at, i)
            return
        s, get = self.config.strips_per_word, self.registers.__getitem__
        heads = range(i.head0, i.head0 + i.heads)
        blocks = -(-get("context_limit") // self.config.tile)
        words = [i.prob + j * i.prob_stride + b for j in range(i.heads) for b in range(blocks)]
        if i.op == Op.SC:
            strips = [
                (i.src + j * get("key_words")) * s + k
                for j in range(i.heads)
                for k in range((get("key_words") - 1) * s + -(-i.tail // self.config.lanes))
            ]
            yield from self.history["strip"].reads(strips, at, "SC query")
            yield from self.history["new key"].reads(heads, at, "SC")
            yield from self.history["probability"].writes(words, at, "SC")
            yield from self._reuse(self.accumulators, "accumulator reuse", [i.acc], at, "SC")
        else:
            yield from self.history["probability"].reads(words, at, "AV")
            yield from self.history["new value"].reads(heads, at, "AV")
            strips = list(range(i.dst, i.dst + i.heads * get("value_strips")))
            yield from self.history["strip"].writes(strips, at, "AV")
            used = range(i.acc, i.acc + get("value_strips"))
            yield from self._reuse(self.accumulators, "accumulator reuse", used, at, "AV")

    def _reuse(
        self, users: dict[int, tuple[int, str]], hazard: str, things: Iterable[int], at: int, who: str
    ) -> Iterator[tuple[str, int, str, str]]:
        for thing in things:
            if thing in users:
                yield hazard, *users[thing], who
            users[thing] = (at, who)

    def _product(self, at: int, i: Instruction) -> Iterator[tuple[str, int, str, str]]:
        c, s = self.config, self.config.strips_per_word
        strips, who = self.history["strip"], i.op.name
        if i.op == Op.MM:
            read = range(i.src * s, (i.src + i.words - 1) * s + -(-i.tail // c.lanes))
            yield from strips.reads(read, at, "MM source")
        hazard = "accumulator reuse" if i.first else "split product"
        used = range(i.acc, i.acc + min(i.group, i.strips))
        yield from self._reuse(self.accumulators, hazard, used, at, who)
        if i.params != Params.NONE or (i.op == Op.MM and c.has_int8):
            block = c.param_strips
            slots = [(i.acc + k) % c.param_depth for k in range(-(-i.strips // block) * block)]
            found = list(self._reuse(self.parameters, "parameter reuse", slots, at, who))
            yield from found if i.first else ()
        if not i.last:
            return
        if i.params == Params.NORM:
            yield from self.history["norm"].reads([i.norm], at, who)
        if i.path == Path.LOGITS:
            return
        dst = range(i.dst, i.dst + i.strips)
        if i.commit in (Commit.KEYS, Commit.VALUES):
            yield from self._commit(at, i)
            return
        if i.path == Path.RESIDUAL:
            yield from strips.reads(dst, at, "addend")
        stored = f"MM {Path(i.path).name.lower()}" if i.op == Op.MM else who
        yield from strips.writes(dst, at, who, stored)
        if i.stats:
            yield from self.history["norm"].writes([i.stats_set], at, who)

    def _commit(self, at: int, i: Instruction) -> Iterator[tuple[str, int, str, str]]:
        who = Commit(i.commit).name
        buffer = "new key" if i.commit == Commit.KEYS else "new value"
        yield from self.history[buffer].writes(range(self.registers["heads"]), at, who)
        for other, when in self.commits.items():
            if other != who:
                yield "memory writer", when, other, who
        self.commits[who] = at


def executed(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    """MM, EMB, SC and AV of one decode step in order, loops unrolled."""
    index = 0
    while index < len(instructions):
        i = instructions[index]
        index += 1
        if i.op == Op.LOOP:
            for _ in range(i.strips):
                yield from instructions[index : index + i.words]
            index += i.words
        elif i.op != Op.NEXT:
            yield i


def program_cells(instructions: Sequence[Instruction], registers: Mapping[str, int], config: CoreConfig) -> set[Cell]:
    """Cells that one program hits in a decode step."""
    tracer = _Tracer(config, registers)
    cells: set[Cell] = set()
    for at, i in enumerate(executed(instructions)):
        for hazard, when, producer, consumer in tracer.accesses(at, i):
            if at > when:
                cells.add(Cell(hazard, producer, consumer, DISTANCES[min(at - when, 4) - 1]))
    return cells


def hazard_table(
    programs: Iterable[tuple[Sequence[Instruction], Mapping[str, int], CoreConfig]],
) -> Counter[Cell]:
    """How many of the programs hit each cell."""
    table: Counter[Cell] = Counter()
    for program in programs:
        table.update(program_cells(*program))
    return table


def table_text(table: Mapping[Cell, int]) -> str:
    """The table for people: one line a pair, programs by distance, the reasons of what is impossible below."""
    lines = [f"{'hazard':<18} {'earlier':<12} {'later':<10} " + " ".join(f"{d:>5}" for d in DISTANCES)]
    for pair in _pairs():
        cells = [Cell(*pair, distance) for distance in DISTANCES]
        counts = " ".join(f"{'-' if cell in IMPOSSIBLE else table.get(cell, 0):>5}" for cell in cells)
        lines.append(f"{pair[0]:<18} {pair[1]:<12} {pair[2]:<10} {counts}")
    lines += [f"- {c.hazard}, {c.producer} to {c.consumer}, {c.distance}: {why}" for c, why in IMPOSSIBLE.items()]
    return "\n".join(lines) + "\n"
