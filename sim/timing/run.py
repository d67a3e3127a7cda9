"""One run of a program on the timing model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hw.board.program import Program
from sim.devices.memory_config import DeviceTiming
from sim.timing.library import load_library
from sim.timing.overrides import TimingOverrides
from sim.timing.prepared import Outcome, RunRegisters, TimingError, complaint, new_board
from sim.timing.result import TimingResult, read_result

__all__ = ["TimingError", "run_timing"]


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
    run = RunRegisters(position, prompt_end, max_new_tokens, flags, tuple(stop_ids))
    library = load_library()
    board = new_board(library, program, run, memory, tokens, registers or {}, overrides or TimingOverrides())
    try:
        stop = -1 if stop_position is None else stop_position
        library.timing_keep_events(board, events)
        outcome = library.timing_run(board, max_cycles, no_progress_cycles, stop)
        result = read_result(library, board, program)
    finally:
        library.timing_delete(board)
    if outcome in (Outcome.STUCK, Outcome.TOO_LONG):
        raise TimingError(complaint(outcome, result, max_cycles, no_progress_cycles))
    return result
