"""One run of a program on the timing model."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BANK_BYTES
from hw.board.program import Program
from hw.gpt2.isa import ACCESS_FIELDS, FIELDS, Access, Instruction
from sim.devices.memory_config import DeviceTiming
from sim.timing.hardware import REGISTERS, STOP_IDS, core_sizes, size_words
from sim.timing.library import load_library
from sim.timing.overrides import TimingOverrides
from sim.timing.result import TimingResult, read_result

__all__ = ["TimingError", "run_timing"]


class TimingError(RuntimeError):
    """A run that makes no progress or does not end within its limit: the program is not legal, or the limit too low."""


class _Outcome(enum.IntEnum):
    FINISHED = 0
    STUCK = 1
    TOO_LONG = 2
    STOPPED = 3


def run_timing(
    program: Program,
    *,
    position: int,
    prompt_end: int,
    max_new_tokens: int,
    memory: DeviceTiming,
    tokens: Sequence[int] = (),
    flags: int = 0,
    stop_ids: Sequence[int] = (),
    registers: Mapping[str, int] | None = None,
    overrides: TimingOverrides | None = None,
    events: bool = False,
    stop_position: int | None = None,
    max_cycles: int = 1 << 40,
    no_progress_cycles: int = 20_000,
) -> TimingResult:
    """Run ``program`` without data and return its cycles.

    Parameters
    ----------
    program : Program
        Its core, instructions, descriptors and registers count; its memory image is not looked at.
    position, prompt_end, max_new_tokens, flags, stop_ids
        As the registers of the run (docs/core.md section 2).
    memory : MemoryTiming, HbmTiming or DdrTiming
        What stands behind the memory ports.
    tokens : sequence of int
        Token ids from position 0 on, as far as they are known, generated ones included: they choose rows of the token
        embedding, and stop ids are compared with them. An unknown token counts as id 0 and as no stop id.
    registers : mapping from str to int
        Registers that differ from the program's.
    overrides : TimingOverrides
        Departures from the hardware.
    events : bool
        Whether to keep the events of the units.
    stop_position : int, optional
        End the simulation when the first tile of this position is issued; ``cycles`` are those up to it, and its span
        is the last.
    max_cycles, no_progress_cycles : int
        Longest run, and longest time without a tile, in cycles of the core.

    The run begins with both clocks in phase and all refreshes at the phases of the memory's seed, like every run of the
    RTL board, so earlier runs do not matter.

    Raises TimingError if a limit is reached, IsaError for a word that is not in the instruction set, ValueError for a
    program that does not fit the core's memories or more than four stop ids.
    """
    config = program.core
    for what, words, depth in (
        ("instructions", program.instructions, config.instructions),
        ("descriptors", program.descriptors, config.descriptors),
    ):
        if len(words) > depth:
            raise ValueError(f"program has {len(words)} {what}, core {config.name!r} holds {depth}")
    if len(stop_ids) > STOP_IDS:
        raise ValueError(f"{len(stop_ids)} stop ids, the core compares {STOP_IDS}")
    run = {"position": position, "prompt_end": prompt_end, "max_new_tokens": max_new_tokens, "flags": flags}
    values = {**program.registers, **(registers or {}), **run, "stop_count": len(stop_ids)}
    stops = [*stop_ids, *[0] * STOP_IDS][:STOP_IDS]
    sizes = size_words((overrides or TimingOverrides()).apply(core_sizes(config)))
    cfg = np.array([*(values[name] for name in REGISTERS), *stops], np.int64)
    instructions = _fields([Instruction.decode(word) for word in program.instructions], tuple(FIELDS), np.int32)
    descriptors = _fields([Access.decode(word) for word in program.descriptors], tuple(ACCESS_FIELDS), np.int64)
    known = np.array(tokens, np.int64)
    offsets = np.array([values.get(f"hbm{c}", 0) % BANK_BYTES for c in range(config.channels)], np.uint64)
    parameters = memory.memory_config(config.port_clock_mhz, config.port_bytes)
    library = load_library()
    board = library.timing_new(
        *(sizes.ctypes.data, cfg.ctypes.data),
        *(instructions.ctypes.data, len(instructions), descriptors.ctypes.data, len(descriptors)),
        *(known.ctypes.data, len(known), ctypes.byref(parameters), memory.seed, offsets.ctypes.data),
    )
    try:
        stop = -1 if stop_position is None else stop_position
        outcome = library.timing_run(board, max_cycles, no_progress_cycles, stop, events)
        result = read_result(library, board, program)
    finally:
        library.timing_delete(board)
    if outcome in (_Outcome.STUCK, _Outcome.TOO_LONG):
        raise TimingError(_complaint(outcome, result, max_cycles, no_progress_cycles))
    return result


def _complaint(outcome: int, result: TimingResult, max_cycles: int, no_progress_cycles: int) -> str:
    where = "before the first instruction"
    if len(result.spans):
        where = f"at instruction {result.spans['index'][-1]} of position {result.spans['position'][-1]}"
    why = f"no tile for {no_progress_cycles} cycles" if outcome == _Outcome.STUCK else f"more than {max_cycles} cycles"
    return f"run stopped {where}, cycle {result.cycles}: {why}; is the program legal, is the limit high enough?"


def _fields(
    items: Sequence[Instruction] | Sequence[Access], names: Sequence[str], kind: type[np.signedinteger]
) -> NDArray[np.signedinteger]:
    return np.array([[int(getattr(item, name)) for name in names] for item in items], kind).reshape(-1, len(names))
