"""A board of the timing model with everything that the host writes before a run."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BANK_BYTES
from hw.board.gpt2_map import row_register
from hw.board.program import Program
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import ACCESS_FIELDS, FIELDS, Access, Instruction, Op
from hw.gpt2.legality import check_program
from sim.devices.memory_config import DeviceTiming
from sim.timing.hardware import MAX_ROWS, REGISTERS, ROW_FIELDS, STOP_IDS, core_sizes, size_words
from sim.timing.overrides import TimingOverrides
from sim.timing.result import TimingResult
from sim.timing.run_start import RunStart

__all__ = ["Outcome", "TimingError", "complaint", "new_board"]

_SIZE_RULES = ("section 2", "section 5", "rule 1", "rule 2", "rule 7")
"""Rules of docs/core.md and docs/ring.md that say what fits a core."""


class TimingError(RuntimeError):
    """A run that makes no progress or does not end within its limit: the program is not legal, or the limit too low."""


class Outcome(enum.IntEnum):
    """How a run ended."""

    FINISHED = 0
    STUCK = 1
    TOO_LONG = 2
    STOPPED = 3


def new_board(
    library: ctypes.CDLL,
    program: Program,
    start: RunStart,
    memory: DeviceTiming,
    registers: Mapping[str, int],
    overrides: TimingOverrides,
) -> int:
    """The C++ object; ``timing_delete`` of ``library`` ends it. Parameters as of ``run_timing``.

    Raises IsaError for a word that is not in the instruction set, ValueError for a program that does not fit the core's
    memories, or requests for rows that it does not have.
    """
    config = program.core
    for what, words, depth in (
        ("instructions", program.instructions, config.instructions),
        ("descriptors", program.descriptors, config.descriptors),
    ):
        if len(words) > depth:
            raise ValueError(f"program has {len(words)} {what}, core {config.name!r} holds {depth}")
    if start.batch and (config.rows == 1 or max(start.requests) >= config.rows):
        raise ValueError(f"core {config.name!r} has no batch of rows {sorted(start.requests)}: it has {config.rows}")
    values = {**program.registers, **registers, **start.registers()}
    code = [Instruction.decode(word) for word in program.instructions]
    if wrong := list(_beyond(code, values, config)):
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ValueError(f"program does not fit core {config.name!r}: {wrong[0]}{more}")
    sizes = size_words(overrides.apply(core_sizes(config)))
    cfg = np.array([*(values[name] for name in REGISTERS), *_row_values(values)], np.int64)
    instructions = _fields(code, tuple(FIELDS), np.int32)
    descriptors = _fields([Access.decode(word) for word in program.descriptors], tuple(ACCESS_FIELDS), np.int64)
    known = [start.requests[row].tokens if row in start.requests else () for row in range(MAX_ROWS)]
    tokens = np.array([token for own in known for token in own], np.int64)
    token_counts = np.array([len(own) for own in known], np.uint64)
    offsets = np.array([values.get(f"hbm{c}", 0) % BANK_BYTES for c in range(config.channels)], np.uint64)
    parameters = memory.memory_config(config.port_clock_mhz, config.port_bytes)
    board = library.timing_new(
        *(sizes.ctypes.data, cfg.ctypes.data),
        *(instructions.ctypes.data, len(instructions), descriptors.ctypes.data, len(descriptors)),
        *(tokens.ctypes.data, token_counts.ctypes.data),
        *(ctypes.byref(parameters), memory.seed, offsets.ctypes.data),
    )
    return int(board)


def _beyond(code: Sequence[Instruction], registers: Mapping[str, int], config: CoreConfig) -> Iterator[str]:
    """What would lie outside the tables of the model; other programs that are not legal come to no end at worst."""
    yield from (line for line in check_program(code, registers, config) if line.split(": ")[1] in _SIZE_RULES)
    for index, one in enumerate(code):
        if one.op == Op.GATHER and one.dst + one.strips > config.new_key_base:
            end = one.dst + one.strips
            yield f"instruction {index} (GATHER): strips end at {end}, activation memory at {config.new_key_base}"


def complaint(outcome: Outcome, result: TimingResult, max_cycles: int, no_progress_cycles: int) -> str:
    """Why a run was given up, and where it was."""
    where = "before the first instruction"
    if len(result.spans):
        where = f"at instruction {result.spans['index'][-1]} of position {result.spans['position'][-1]}"
    why = f"no tile for {no_progress_cycles} cycles" if outcome == Outcome.STUCK else f"more than {max_cycles} cycles"
    return f"run stopped {where}, cycle {result.cycles}: {why}; is the program legal, is the limit high enough?"


def _row_values(values: Mapping[str, int]) -> list[int]:
    """Registers of each row in the order of the C++ structure; behind row 0 they are 0 unless written."""
    stops = [f"stop_{i}" for i in range(STOP_IDS)]
    first = [*(values[name] for name in ROW_FIELDS), *(values.get(name, 0) for name in stops)]
    behind = [values.get(row_register(name, row), 0) for row in range(1, MAX_ROWS) for name in (*ROW_FIELDS, *stops)]
    return first + behind


def _fields(
    items: Sequence[Instruction] | Sequence[Access], names: Sequence[str], kind: type[np.signedinteger]
) -> NDArray[np.signedinteger]:
    return np.array([[int(getattr(item, name)) for name in names] for item in items], kind).reshape(-1, len(names))
