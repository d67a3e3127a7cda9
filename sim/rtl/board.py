"""A board whose kernel is Verilated gateware: the BoardModel of executor ``rtl``."""

from __future__ import annotations

from typing import NoReturn

from hw.board.board_model import BoardError, BoardStuckError
from sim.devices.memory_config import DeviceTiming
from sim.devices.memory_timing import MemoryTiming
from sim.rtl.build import BuiltBoard
from sim.rtl.harness import Result, load_harness
from sim.rtl.kernel_board import KernelBoard

__all__ = ["RtlBoard"]


class RtlBoard(KernelBoard):
    """One simulated board around a compiled kernel; implements ``hw.board.board_model.BoardModel``.

    Parameters
    ----------
    built : BuiltBoard
        From ``sim.rtl.build.build_board``. Several boards may use one.
    timing : MemoryTiming, HbmTiming or DdrTiming
        The memory behind the ports; default: fixed delays.
    no_progress_cycles : int
        A run in which for so many cycles no tile is issued, nothing moves on a memory port and the state stays the
        same is stuck.
    wall_limit_s : float
        Longest time that :meth:`advance` may spend on one run, in seconds; 0 for no limit.
    threads : int
        1, or 2 to share every clock cycle between two threads: the same results, faster for the 64x16 core if a second
        processor is free. Flat builds use one.

    Every access of a register takes some clock cycles of a run, but does not change what the run does or how long it
    takes.
    ``load`` writes ``hbm<c>`` with ``c << 28`` as on the card. The memory of channel c begins at the multiple of 2^28
    at or below ``hbm<c>``, whatever that is, so 0 and addresses within the bank work as well.
    Errors: BoardError; BoardStuckError for both limits.
    """

    def __init__(
        self,
        built: BuiltBoard,
        *,
        timing: DeviceTiming | None = None,
        no_progress_cycles: int = 20_000,
        wall_limit_s: float = 0.0,
        threads: int = 1,
    ) -> None:
        if threads not in (1, 2):
            raise BoardError(f"threads must be 1 or 2, got {threads!r}")
        library = load_harness(built.library)
        super().__init__(built, library, library.board_new(), timing or MemoryTiming())
        self.no_progress_cycles = no_progress_cycles
        self.wall_limit_s = wall_limit_s
        library.board_limits(self._board, no_progress_cycles, wall_limit_s)
        library.board_threads(self._board, threads)

    def __enter__(self) -> RtlBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the model; calling it again does nothing."""
        if self._board is not None:
            self._library.board_delete(self._board)
            self._board = None

    def _raise(self, result: Result) -> NoReturn:
        if result == Result.VIOLATION:
            raise BoardError(f"AXI4 protocol violated on memory {self._message()}")
        if result == Result.TOO_LONG:
            raise BoardStuckError(f"run took more than {self.wall_limit_s} s of wall-clock time; {self.waits_for()}")
        ports = self.waiting_ports()
        raise BoardStuckError(f"nothing moved for {self.no_progress_cycles} cycles; {self.waits_for()}; {ports}")
