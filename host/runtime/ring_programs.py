"""The programs of the boards of a ring, seen together: do they belong to one another, and which board makes what."""

from __future__ import annotations

from collections.abc import Sequence

from host.driver.program_memory import cached_positions
from host.errors import BadInput
from hw.board.program import Program
from hw.gpt2.isa import Instruction, IsaError, Op

__all__ = ["check_programs", "strip_owner", "vocabulary_order"]

_ALIKE = ("ring_key", "context_limit", "width", "layers")  # registers that all boards of a plan have the same


def check_programs(programs: Sequence[Program]) -> None:
    """Raise BadInput unless these are the programs of boards 0, 1, ... of one model and plan.

    What each instruction does is the compiler's affair; this finds folders that were mixed up or left out.
    """
    boards = len(programs)
    for place, program in enumerate(programs):
        if (program.board, program.boards) != (place, boards):
            raise _mixed(
                f"the program of board {program.board} of {program.boards} is given for board {place} of {boards}",
                "Give the folder that holds the programs of all boards, as `ringfly compile --boards` wrote it."
                if program.boards > 1
                else "Compile the model again with --boards.",
            )
        if boards > 1:
            registers = [program.registers.get(name, 0) for name in ("ring_boards", "ring_board")]
            if registers != [boards, place]:
                raise _mixed(f"the program of board {place} sets ring_boards and ring_board to {registers}")
        for what, of_board, of_first in _common(program, programs[0]):
            if of_board != of_first:
                raise _mixed(f"{what} is {of_first} on board 0 and {of_board} on board {place}")
    end = 0
    for board in vocabulary_order(programs):
        first, columns = _columns(programs[board])
        if first != end:
            raise _mixed(f"the columns of the logits do not join: those of board {board} begin at {first}, not {end}")
        end = first + columns


def vocabulary_order(programs: Sequence[Program]) -> list[int]:
    """The boards in the order of their columns of the logits."""
    return sorted(range(len(programs)), key=lambda board: _columns(programs[board])[0])


def strip_owner(programs: Sequence[Program], strip: int) -> int | None:
    """The board that computes the gathered strip at this address, or None if no board does."""
    for board, program in enumerate(programs):
        for word in program.instructions:
            try:
                gather = Instruction.decode(word)
            except IsaError:
                continue
            if gather.op == Op.GATHER and 0 <= strip - gather.dst - gather.src < gather.words:
                return board
    return None


def _columns(program: Program) -> tuple[int, int]:
    """(token id of the first logit, number of logits) of a board."""
    return program.registers.get("token_offset", 0), program.registers["vocab"]


def _common(program: Program, first: Program) -> list[tuple[str, object, object]]:
    """(what, its value, that of board 0) of everything in which the boards of a plan are alike."""
    found: list[tuple[str, object, object]] = [
        ("the core", program.core.name, first.core.name),
        ("the core's digest", program.core.digest[:16], first.core.digest[:16]),
        ("the model", program.model_digest[:16], first.model_digest[:16]),
        ("the number of cached positions", cached_positions(program), cached_positions(first)),
    ]
    found += [(f"register {name}", program.registers.get(name, 0), first.registers.get(name, 0)) for name in _ALIKE]
    return found


def _mixed(message: str, hint: str = "Compile the model again with --boards.") -> BadInput:
    return BadInput(f"these are not the programs of one ring: {message}", kind="bad_program", hint=hint)
