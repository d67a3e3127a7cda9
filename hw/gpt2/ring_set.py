"""Whether the programs of several boards belong together (docs/ring.md, section 3, rule 11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hw.board.program import Program
from hw.gpt2.isa import Commit, Instruction, IsaError, Op

__all__ = ["check_ring"]

_COMMON = (
    "ring_boards",
    "ring_key",
    "context_limit",
    "width",
    "eps_term",
    "score_scale",
    "layers",
    "key_words",
    "value_strips",
    "embed_strips",
)


def check_ring(programs: Sequence[Program]) -> list[str]:
    """All that is wrong between the programs of a ring, in order of the boards; an empty list means that they fit.

    Each program must be legal by itself (``hw.gpt2.legality.check_program``); that is not checked again.
    """
    if not programs:
        return ["ring: no programs"]
    found = list(_registers(programs))
    try:
        code = [[Instruction.decode(word) for word in program.instructions] for program in programs]
    except IsaError as error:
        return [*found, f"ring: {error}"]
    return [*found, *_sequence(code), *_slices(code)]


def _register(registers: Mapping[str, int], name: str) -> int:
    return int(registers.get(name, 0))


def _registers(programs: Sequence[Program]) -> Iterator[str]:
    count = len(programs)
    for place, program in enumerate(programs):
        boards, board = (_register(program.registers, f"ring_board{s}") for s in ("s", ""))
        if (program.boards, program.board, boards, board) != (count, place, count, place):
            yield (
                f"board {place}: must be board {place} of {count}, the program says {program.board} of "
                f"{program.boards}, its registers {board} of {boards}"
            )
        if program.core.digest != programs[0].core.digest:
            yield f"board {place}: core {program.core.name!r} is not board 0's {programs[0].core.name!r}"
        for name in _COMMON:
            value, first = (_register(p.registers, name) for p in (program, programs[0]))
            if value != first:
                yield f"board {place}: register {name} is {value:#x}, board 0 has {first:#x}"
    columns = [(_register(p.registers, "token_offset"), _register(p.registers, "vocab")) for p in programs]
    yield from _tiling("vocabulary", columns, sum(vocab for _, vocab in columns))


def _sequence(code: Sequence[Sequence[Instruction]]) -> Iterator[str]:
    """Boards must wait for each other at the same points: gathers, sums, arg-max, in the same loops."""
    events = [_events(instructions) for instructions in code]
    for place, mine in enumerate(events):
        for number, (got, want) in enumerate(zip(mine, events[0], strict=False)):
            if got != want:
                yield f"board {place}: synchronisation {number} is {got}, board 0 has {want}"
                break
        else:
            if len(mine) != len(events[0]):
                yield f"board {place}: {len(mine)} synchronisations, board 0 has {len(events[0])}"


def _events(instructions: Sequence[Instruction]) -> list[str]:
    events: list[str] = []
    end = -1
    for index, i in enumerate(instructions):
        if index == end:
            events.append("end of the loop")
        if i.op == Op.LOOP:
            events.append(f"LOOP of {i.strips}")
            end = index + 1 + i.words
        elif i.op == Op.GATHER:
            events.append(f"GATHER of strips {i.dst} to {i.dst + i.strips - 1}")
        elif i.send and i.stats:
            events.append("sums")
        elif i.commit == Commit.TOKEN:
            events.append("arg-max")
    return events


def _slices(code: Sequence[Sequence[Instruction]]) -> Iterator[str]:
    gathers = [[i for i in instructions if i.op == Op.GATHER] for instructions in code]
    for number, vector in enumerate(zip(*gathers, strict=False)):
        first = vector[0]
        if all((i.dst, i.strips) == (first.dst, first.strips) for i in vector):
            what = f"GATHER {number} of strips {first.dst} to {first.dst + first.strips - 1}"
            yield from _tiling(what, [(i.src, i.words) for i in vector], first.strips)


def _tiling(what: str, slices: Sequence[tuple[int, int]], total: int) -> Iterator[str]:
    """Slices (start, count) must cover 0 to total - 1 once."""
    end = 0
    for start, count in sorted(slices):
        if start != end:
            break
        end = start + count
    else:
        if end == total:
            return
    text = ", ".join(f"{start} to {start + count - 1}" for start, count in slices)
    yield f"ring: {what}: the boards have {text}; they must cover 0 to {total - 1} once"
