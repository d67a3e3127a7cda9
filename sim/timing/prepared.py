"""A board of the timing model with everything that the host writes before a run."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BANK_BYTES
from hw.board.program import Program
from hw.gpt2.isa import ACCESS_FIELDS, FIELDS, Access, Instruction
from sim.devices.memory_config import DeviceTiming
from sim.timing.hardware import REGISTERS, STOP_IDS, core_sizes, size_words
from sim.timing.overrides import TimingOverrides
from sim.timing.result import TimingResult

__all__ = ["Outcome", "RunRegisters", "TimingError", "complaint", "new_board"]


class TimingError(RuntimeError):
    """A run that makes no progress or does not end within its limit: the program is not legal, or the limit too low."""


class Outcome(enum.IntEnum):
    """How a run ended."""

    FINISHED = 0
    STUCK = 1
    TOO_LONG = 2
    STOPPED = 3


@dataclasses.dataclass(frozen=True)
class RunRegisters:
    """Registers that belong to a run, not to its program (docs/core.md section 2).

    Raises ValueError for more stop ids than the core compares.
    """

    position: int
    prompt_end: int
    max_new_tokens: int
    flags: int = 0
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.stop_ids) > STOP_IDS:
            raise ValueError(f"{len(self.stop_ids)} stop ids, the core compares {STOP_IDS}")

    def values(self) -> dict[str, int]:
        """By register name, the stop ids left out."""
        own = {name: getattr(self, name) for name in ("position", "prompt_end", "max_new_tokens", "flags")}
        return own | {"stop_count": len(self.stop_ids)}


def new_board(
    library: ctypes.CDLL,
    program: Program,
    run: RunRegisters,
    memory: DeviceTiming,
    tokens: Sequence[int],
    registers: Mapping[str, int],
    overrides: TimingOverrides,
) -> int:
    """The C++ object; ``timing_delete`` of ``library`` ends it. Parameters as of ``run_timing``.

    Raises IsaError for a word that is not in the instruction set, ValueError for a program that does not fit the core's
    memories.
    """
    config = program.core
    for what, words, depth in (
        ("instructions", program.instructions, config.instructions),
        ("descriptors", program.descriptors, config.descriptors),
    ):
        if len(words) > depth:
            raise ValueError(f"program has {len(words)} {what}, core {config.name!r} holds {depth}")
    values = {**program.registers, **registers, **run.values()}
    stops = [*run.stop_ids, *[0] * STOP_IDS][:STOP_IDS]
    sizes = size_words(overrides.apply(core_sizes(config)))
    cfg = np.array([*(values[name] for name in REGISTERS), *stops], np.int64)
    instructions = _fields([Instruction.decode(word) for word in program.instructions], tuple(FIELDS), np.int32)
    descriptors = _fields([Access.decode(word) for word in program.descriptors], tuple(ACCESS_FIELDS), np.int64)
    known = np.array(tokens, np.int64)
    offsets = np.array([values.get(f"hbm{c}", 0) % BANK_BYTES for c in range(config.channels)], np.uint64)
    parameters = memory.memory_config(config.port_clock_mhz, config.port_bytes)
    board = library.timing_new(
        *(sizes.ctypes.data, cfg.ctypes.data),
        *(instructions.ctypes.data, len(instructions), descriptors.ctypes.data, len(descriptors)),
        *(known.ctypes.data, len(known), ctypes.byref(parameters), memory.seed, offsets.ctypes.data),
    )
    return int(board)


def complaint(outcome: Outcome, result: TimingResult, max_cycles: int, no_progress_cycles: int) -> str:
    """Why a run was given up, and where it was."""
    where = "before the first instruction"
    if len(result.spans):
        where = f"at instruction {result.spans['index'][-1]} of position {result.spans['position'][-1]}"
    why = f"no tile for {no_progress_cycles} cycles" if outcome == Outcome.STUCK else f"more than {max_cycles} cycles"
    return f"run stopped {where}, cycle {result.cycles}: {why}; is the program legal, is the limit high enough?"


def _fields(
    items: Sequence[Instruction] | Sequence[Access], names: Sequence[str], kind: type[np.signedinteger]
) -> NDArray[np.signedinteger]:
    return np.array([[int(getattr(item, name)) for name in names] for item in items], kind).reshape(-1, len(names))
