"""One run of a program on the timing model: a sequence, or a batch of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hw.board.program import Program
from hw.gpt2.sampled_token import BoardSampling
from sim.devices.memory_config import DeviceTiming
from sim.timing.library import load_library
from sim.timing.overrides import TimingOverrides
from sim.timing.prepared import Outcome, TimingError, complaint, new_board
from sim.timing.result import TimingResult, read_result
from sim.timing.run_start import Request, RunStart

__all__ = ["TimingError", "run_batch_timing", "run_timing"]

_MAX_CYCLES, _NO_PROGRESS_CYCLES = 1 << 40, 20_000


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
    sampling: BoardSampling | None = None,
    registers: Mapping[str, int] | None = None,
    overrides: TimingOverrides | None = None,
    events: bool = False,
    stop_position: int | None = None,
    max_cycles: int = _MAX_CYCLES,
    no_progress_cycles: int = _NO_PROGRESS_CYCLES,
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
    sampling : BoardSampling, optional
        How the board draws the tokens; None: the arg-max. With ``top_k`` its queue counts as never full, and as worked
        off in time: so it is where a product of the head brings a strip no sooner than every ``lanes`` cycles.
    registers : mapping from str to int
        Registers that differ from the program's.
    overrides : TimingOverrides
        Departures from the hardware.
    events : bool
        Whether to keep the events of the units.
    stop_position : int, optional
        End the simulation when the first tile of this position is issued; ``cycles`` are those up to it, and its span
        is the last. On a core with rows the step that ends at this position counts.
    max_cycles, no_progress_cycles : int
        Longest run, and longest time without a tile, in cycles of the core.

    The run begins with both clocks in phase and all refreshes at the phases of the memory's seed, like every run of the
    RTL board, so earlier runs do not matter.

    Raises TimingError if a limit is reached, IsaError for a word that is not in the instruction set, ValueError for a
    program that does not fit the core's memories, more than four stop ids or the flag of a batch.
    """
    request = Request(position, prompt_end, max_new_tokens, tuple(stop_ids), tuple(tokens), sampling)
    start = RunStart({0: request}, flags=flags)
    stop = -1 if stop_position is None else stop_position
    return _run(program, start, memory, registers, overrides, events, stop, max_cycles, no_progress_cycles)


def run_batch_timing(
    program: Program,
    requests: Mapping[int, Request],
    *,
    memory: DeviceTiming,
    flags: int = 0,
    registers: Mapping[str, int] | None = None,
    overrides: TimingOverrides | None = None,
    events: bool = False,
    max_cycles: int = _MAX_CYCLES,
    no_progress_cycles: int = _NO_PROGRESS_CYCLES,
) -> TimingResult:
    """The same for a batch of ``requests`` by row (docs/rows.md section 2), on a core with several rows.

    Each request's keys, values and logits lie where the registers of its row say. Raises what ``run_timing`` raises,
    and ValueError for rows that the core does not have.
    """
    start = RunStart(requests, batch=True, flags=flags)
    return _run(program, start, memory, registers, overrides, events, -1, max_cycles, no_progress_cycles)


def _run(
    program: Program,
    start: RunStart,
    memory: DeviceTiming,
    registers: Mapping[str, int] | None,
    overrides: TimingOverrides | None,
    events: bool,
    stop_position: int,
    max_cycles: int,
    no_progress_cycles: int,
) -> TimingResult:
    library = load_library()
    board = new_board(library, program, start, memory, registers or {}, overrides or TimingOverrides())
    try:
        library.timing_keep_events(board, events)
        outcome = library.timing_run(board, max_cycles, no_progress_cycles, stop_position)
        result = read_result(library, board, program, batch=start.batch)
    finally:
        library.timing_delete(board)
    if outcome in (Outcome.STUCK, Outcome.TOO_LONG):
        raise TimingError(complaint(outcome, result, max_cycles, no_progress_cycles))
    return result
