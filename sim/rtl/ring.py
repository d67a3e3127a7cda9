"""Several boards with verilated kernels in one process, joined to a ring by cables."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn

from hw.board.board_model import BoardError, BoardStuckError
from hw.board.gpt2_map import MAX_BOARDS
from sim.devices.link_timing import ClockPeriods, LinkConfig, LinkTiming
from sim.devices.memory_config import DeviceTiming
from sim.devices.memory_timing import MemoryTiming
from sim.rtl.build import BuiltBoard
from sim.rtl.harness import Result, load_harness
from sim.rtl.kernel_board import KernelBoard

__all__ = ["LinkCounters", "RingBoard", "RtlRing", "board_memory"]

_PORTS = ("left", "right")


@dataclasses.dataclass(frozen=True)
class LinkCounters:
    """What the model of a cable has done with the words that one port sent, since the boards were last reset.

    Words that are neither lost nor received are under way. A corrupted word counts as received too.
    """

    words_sent: int
    words_lost: int
    words_corrupted: int
    words_received: int


def board_memory(memory: DeviceTiming, board: int) -> DeviceTiming:
    """The memory of a board of a ring: the same for all but for its seed, which is ``memory.seed + board``."""
    timing: Any = memory  # a dataclass, which the protocol cannot say
    return dataclasses.replace(timing, seed=memory.seed + board)


class RtlRing:
    """Boards of one kernel in a ring: port 1 (right) of board b is cabled to port 0 (left) of board b + 1.

    Parameters
    ----------
    built : BuiltBoard
        From ``sim.rtl.build.build_board``.
    boards : int
        2 to 8.
    timing : MemoryTiming, HbmTiming or DdrTiming
        The memory behind the ports of every board; see :func:`board_memory`. Default: fixed delays.
    links : LinkTiming or a sequence of them
        The cables; of a sequence, item b is the one between board b and board b + 1. Each direction draws from a
        stream of its own.
    threads : int
        1, or 2 to share the boards between two threads: the same results.
    no_progress_cycles : int
        The ring is stuck if for so many cycles no board issued a tile, changed its state or moved anything on a memory
        port, no port sent or received a frame that is not an ACK, and no such frame is under way.
    wall_limit_s : float
        Longest time that one move of the ring may take, in seconds; 0 for no limit.

    Attributes
    ----------
    boards : tuple of RingBoard

    The ring begins to move with the first ``advance`` of a board whose run is on, and then all boards work together;
    it comes to rest when none has a run. At rest a register access lets its own board alone work, and the links stand
    still: results do not depend on the order and the number of accesses with which the host loads and starts the
    boards (of a board that it has started it may read some 20 registers before the others are started too). While the
    ring moves every access lets all boards work.
    ``load`` of a board at rest takes all channels of the ring down and up again, with draws and counters anew.
    Errors: BoardError, and BoardStuckError for both limits. A context manager.
    """

    def __init__(
        self,
        built: BuiltBoard,
        boards: int,
        *,
        timing: DeviceTiming | None = None,
        links: LinkTiming | Sequence[LinkTiming] | None = None,
        threads: int = 1,
        no_progress_cycles: int = 20_000,
        wall_limit_s: float = 0.0,
    ) -> None:
        if not 2 <= boards <= MAX_BOARDS:
            raise BoardError(f"boards must be 2 to {MAX_BOARDS}, got {boards!r}; one board is an RtlBoard")
        if threads not in (1, 2):
            raise BoardError(f"threads must be 1 or 2, got {threads!r}")
        cables = [links or LinkTiming()] * boards if links is None or isinstance(links, LinkTiming) else list(links)
        if len(cables) != boards:
            raise BoardError(f"links must be one LinkTiming or {boards}, one for each cable, got {len(cables)}")
        self._library = load_harness(built.library)
        if not self._library.ring_ports():
            raise BoardError(f"the kernel of core {built.config.name!r} has no link ports, so it cannot be in a ring")
        self.built = built
        self.no_progress_cycles = no_progress_cycles
        self.wall_limit_s = wall_limit_s
        periods = ClockPeriods.of(built.config.core_clock_mhz, built.config.port_clock_mhz)
        configs = (LinkConfig * boards)(*(cable.link_config(periods) for cable in cables))
        self._ring: int | None = self._library.ring_new(
            boards, ctypes.byref(configs), threads, no_progress_cycles, wall_limit_s
        )
        memory = timing or MemoryTiming()
        self.boards = tuple(
            RingBoard(self, index, built, self._library, board_memory(memory, index)) for index in range(boards)
        )

    def __enter__(self) -> RtlRing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def move(self, cycles: int) -> None:
        """Let all boards work for ``cycles`` of their core's clock, also if none has a run."""
        self._library.ring_move(self.handle(), cycles)

    def cut(self, board: int, port: int, *, drops_channel: bool = True) -> None:
        """Cut the cable at a board's port (0 left, 1 right), both ways: what has not arrived is lost.

        ``drops_channel``: both ends see the channel go down; else it seems up and carries nothing. It stays cut until
        :meth:`mend`, whatever is loaded. Raises BoardError for a port that there is not.
        """
        self._library.ring_cut(self.handle(), *self._port(board, port), drops_channel)

    def mend(self, board: int, port: int) -> None:
        """Make a cable whole again, also one that was cut at its ``cut_at_ns``; a channel that was down comes up."""
        self._library.ring_mend(self.handle(), *self._port(board, port))

    def link_counters(self, board: int, port: int) -> LinkCounters:
        """Of the words that a board's port has sent."""
        values = (ctypes.c_uint64 * 4)()
        self._library.ring_counters(self.handle(), *self._port(board, port), values)
        return LinkCounters(*values)

    def close(self) -> None:
        """Release all boards; calling it again does nothing."""
        if self._ring is not None:
            ring, self._ring = self._ring, None
            for board in self.boards:
                board.close()
            self._library.ring_delete(ring)

    def handle(self) -> int:
        """The harness's ring. Raises BoardError if this one is closed."""
        if self._ring is None:
            raise BoardError("the ring is closed")
        return self._ring

    def message(self) -> str:
        """What the harness says about the last error."""
        return self._library.ring_message(self.handle()).decode()

    def waits_for(self) -> str:
        """What every unit and every memory port of every board waits for, in words."""
        texts = []
        for index, board in enumerate(self.boards):
            ports = board.waiting_ports()
            texts.append(f"board {index}: {board.waits_for()}; {ports}")
        return "; ".join(texts)

    def _port(self, board: int, port: int) -> tuple[int, int]:
        if not 0 <= board < len(self.boards) or not 0 <= port < len(_PORTS):
            raise BoardError(
                f"board must be 0 to {len(self.boards) - 1} and port 0 (left) or 1 (right), got {board!r} and {port!r}"
            )
        return board, port


class RingBoard(KernelBoard):
    """One board of a ring; implements ``hw.board.board_model.BoardModel``. Made by :class:`RtlRing`.

    ``advance`` lets the whole ring work until this board's run ends or the cycles have passed.
    """

    def __init__(
        self,
        ring: RtlRing,
        index: int,
        built: BuiltBoard,
        library: ctypes.CDLL,
        timing: DeviceTiming,
    ) -> None:
        self.ring = ring
        self.index = index
        super().__init__(built, library, library.ring_board(ring.handle(), index), timing)

    def close(self) -> None:
        """Answer no more; calling it again does nothing. The last board of a ring to be closed releases it."""
        self._board = None
        if all(board.closed for board in self.ring.boards):
            self.ring.close()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._board is None

    def _raise(self, result: Result) -> NoReturn:
        ring = self.ring
        if result == Result.VIOLATION:
            raise BoardError(f"AXI4 protocol violated on memory of {ring.message()}")
        if result == Result.TOO_LONG:
            raise BoardStuckError(
                f"the ring took more than {ring.wall_limit_s} s of wall-clock time; {ring.waits_for()}"
            )
        raise BoardStuckError(
            f"nothing moved on any board for {ring.no_progress_cycles} cycles and no frame is under way; "
            f"{ring.waits_for()}"
        )
