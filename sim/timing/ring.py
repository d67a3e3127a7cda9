"""One run of the programs of a ring on the timing model: several boards and their cables in lock step."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from hw.board.gpt2_map import MAX_BOARDS
from hw.board.program import Program
from sim.devices.link_timing import ClockPeriods, LinkTiming
from sim.devices.memory_config import DeviceTiming
from sim.rtl.ring import board_memory
from sim.timing.library import load_library
from sim.timing.overrides import TimingOverrides
from sim.timing.prepared import Outcome, TimingError, complaint, new_board
from sim.timing.result import TimingResult, read_result
from sim.timing.ring_hardware import ring_size_words, ring_sizes
from sim.timing.run_start import Request, RunStart

__all__ = ["PortTraffic", "RingResult", "run_ring_timing"]


@dataclasses.dataclass(frozen=True)
class PortTraffic:
    """Frames of a port in a run, acknowledgements left out: first sends, taken ones, times that it went back."""

    frames_sent: int
    frames_received: int
    resends: int


@dataclasses.dataclass(frozen=True)
class RingResult:
    """What a run took on each board, the traffic of its ports (left, right), the strips of others that it stored."""

    boards: tuple[TimingResult, ...]
    ports: tuple[tuple[PortTraffic, PortTraffic], ...]
    strips_stored: tuple[int, ...]


def run_ring_timing(
    programs: Sequence[Program],
    *,
    position: int,
    prompt_end: int,
    max_new_tokens: int,
    memory: DeviceTiming,
    links: LinkTiming,
    tokens: Sequence[int] = (),
    flags: int = 0,
    stop_ids: Sequence[int] = (),
    registers: Mapping[str, int] | None = None,
    overrides: TimingOverrides | None = None,
    events: bool = False,
    stop_position: int | None = None,
    max_cycles: int = 1 << 40,
    no_progress_cycles: int = 20_000,
) -> RingResult:
    """Run one program a board, in the order of the ring, without data.

    Parameters
    ----------
    programs : sequence of Program
        Two to eight, of the same core.
    memory : DeviceTiming
        Of board 0; the others' differ in their seed (``sim.rtl.ring.board_memory``).
    links : LinkTiming
        The cables; those that lose or change words are not modelled.

    stop_position : int, optional
        End the simulation when every board has issued the first tile of this position.

    The other parameters are those of :func:`sim.timing.run.run_timing`. All boards start in the same cycle, with all
    channels up.

    Raises TimingError if a limit is reached: no board issues a tile for ``no_progress_cycles``, or the run takes more
    than ``max_cycles``. ValueError for programs that are no ring, or cables with faults.
    """
    _check(programs, links)
    changes = overrides or TimingOverrides()
    config = programs[0].core
    sizes = changes.apply_ring(ring_sizes(config, len(programs)))
    periods = ClockPeriods.of(config.core_clock_mhz, config.port_clock_mhz)
    start = RunStart({0: Request(position, prompt_end, max_new_tokens, tuple(stop_ids), tuple(tokens))}, flags=flags)
    library = load_library()
    boards: list[int] = []
    ring = None
    try:
        for number, program in enumerate(programs):
            own = board_memory(memory, number)
            boards.append(new_board(library, program, start, own, registers or {}, changes.of_core()))
            library.timing_keep_events(boards[-1], events)
        words = ring_size_words(sizes)
        pointers = (ctypes.c_void_p * len(boards))(*boards)
        config_of_links = links.link_config(periods)
        ring = library.timing_ring_new(pointers, len(boards), words.ctypes.data, ctypes.byref(config_of_links))
        stop = -1 if stop_position is None else stop_position
        outcome = Outcome(library.timing_ring_run(ring, max_cycles, no_progress_cycles, stop))
        results = [read_result(library, board, program) for board, program in zip(boards, programs, strict=True)]
        strips = tuple(library.timing_ring_strips(ring, number) for number in range(len(boards)))
        traffic = np.zeros((len(boards), 2, 3), np.int64)
        library.timing_ring_ports(ring, traffic.ctypes.data)
    finally:
        if ring is not None:
            library.timing_ring_delete(ring)
        for board in boards:
            library.timing_delete(board)
    if outcome in (Outcome.STUCK, Outcome.TOO_LONG):
        stopped = (complaint(outcome, result, max_cycles, no_progress_cycles) for result in results)
        raise TimingError("; ".join(f"board {number}: {text}" for number, text in enumerate(stopped)))
    ports = tuple((PortTraffic(*left), PortTraffic(*right)) for left, right in traffic.tolist())
    return RingResult(tuple(results), ports, strips)


def _check(programs: Sequence[Program], links: LinkTiming) -> None:
    if not 2 <= len(programs) <= MAX_BOARDS:
        raise ValueError(f"a ring has 2 to {MAX_BOARDS} boards, got {len(programs)} programs")
    for number, program in enumerate(programs):
        if program.core.digest != programs[0].core.digest:
            raise ValueError(f"board {number} has core {program.core.name!r}, board 0 {programs[0].core.name!r}")
        if not program.core.has_ring:
            raise ValueError(f"core {program.core.name!r} has no ring")
        said = program.registers.get("ring_boards"), program.registers.get("ring_board")
        if said != (len(programs), number):
            raise ValueError(
                f"program {number} of {len(programs)} is made for board {said[1]} of {said[0]}: give a ring's in order"
            )
    faults = {
        name: getattr(links, name) for name in ("word_drop_rate", "word_corrupt_rate", "frame_error_rate", "cut_at_ns")
    }
    if wrong := [f"{name} {value!r}" for name, value in faults.items() if value]:
        raise ValueError(f"the timing model has cables without faults only, got {', '.join(wrong)}")
