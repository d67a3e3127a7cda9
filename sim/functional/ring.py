"""Several functional boards in a ring: they join a run, work on its positions in step, and end it together."""

from __future__ import annotations

from collections.abc import Sequence

from hw.board.board_model import BoardError
from hw.board.gpt2_map import INTERFACE_VERSION, MAX_BOARDS, ErrorCode
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import CoreConfig

from .board import FunctionalBoard
from .exchange import RingExchange, Waits

__all__ = ["FunctionalRing", "RingBoard"]


_UP, _JOINED = 0b11, 1 << 4  # bits of link_status


class FunctionalRing:
    """Boards whose cables make a ring: port 1 of each goes to port 0 of the next.

    A core with several rows has no ring: its board refuses to start as one of several.

    Parameters
    ----------
    boards : int
        1 to 8. A ring of one is a board alone.
    config : CoreConfig or None
        The only core that the boards accept; None: whatever their programs were made for.
    versions : sequence of int or None
        Interface version of each board; None: this package's.

    ``boards`` are ``hw.board.board_model.BoardModel``. ``advance`` on any of them lets the whole ring work on one
    position (boards whose ``ring_boards`` is 0 or 1 on one of their own). Boards that have begun wait for the others;
    each ``advance`` in which they can do nothing else counts as ``max_cycles`` cycles of their ``link_limit``, then
    they end with NO_HELLO. Errors are those of docs/ring.md, section 5, but for LINK_DOWN and PEER_SILENT: cables do
    not break here, and boards that wait for each other for ever raise BoardError at once, naming what each waits for.
    After a BoardError the run can only be cancelled. Not for use from several threads at once.
    """

    def __init__(self, boards: int, config: CoreConfig | None = None, *, versions: Sequence[int] | None = None) -> None:
        if not 1 <= boards <= MAX_BOARDS:
            raise ValueError(f"a ring has 1 to {MAX_BOARDS} boards, got {boards!r}")
        versions = [INTERFACE_VERSION] * boards if versions is None else versions
        if len(versions) != boards:
            raise ValueError(f"{len(versions)} interface versions for {boards} boards")
        self.boards = tuple(RingBoard(self, config, version) for version in versions)
        self._exchange: RingExchange | None = None  # while the boards work together
        self._failure = ""  # of the run that is going on

    def advance(self, max_cycles: int) -> None:
        """Let all boards work on one position. Raises BoardError for a deadlock or an illegal program."""
        for board in self.boards:
            was_running = board.running
            if was_running and not board.may_go_on():
                self._tell(board)
        for board in self.boards:
            if board.running and not board.in_ring:
                for wait in board.step():
                    raise BoardError(f"board {self.boards.index(board)}: {wait}, but it works alone")
        members = [board for board in self.boards if board.running and board.in_ring]
        if not members:
            self._exchange, self._failure = None, ""
            return
        if self._exchange is None and not self._join(members, max_cycles):
            return
        if self._failure:
            raise BoardError(self._failure)
        try:
            self._work()
        except BoardError as error:
            self._failure = str(error)
            raise

    def started(self) -> None:
        """A board has started: what was wrong with the run before is over if no board is left in it."""
        if sum(board.running for board in self.boards) == 1:
            self._exchange, self._failure = None, ""

    def _join(self, members: list[RingBoard], max_cycles: int) -> bool:
        """HELLO between neighbours; True if all boards have joined."""
        if self._end_all(
            [(board, *found) for board in members if (found := board.taken_abort() or self._refusal(board))]
        ):
            return False
        if len(members) == len(self.boards) and all(self._neighbours(board) == [True, True] for board in members):
            if members[0]["ring_boards"] != len(members):
                raise BoardError(
                    f"register ring_boards is {members[0]['ring_boards']}, {len(members)} boards are cabled"
                )
            self._exchange = RingExchange(len(members), members[0].config)
            for board in members:
                board.join(self._exchange.sides[board["ring_board"]])
                board["link_status"] = _UP | _JOINED
            return True
        late: list[tuple[RingBoard, ErrorCode, int]] = []
        for board in members:
            board.waited += max_cycles
            silent = sum(1 << port for port, heard in enumerate(self._neighbours(board)) if not heard)
            if silent and 0 < board["link_limit"] <= board.waited:
                late.append((board, ErrorCode.NO_HELLO, silent))
        self._end_all(late)
        return False

    def _end_all(self, failures: Sequence[tuple[RingBoard, ErrorCode, int]]) -> bool:
        """End runs that fail at the same time, then tell the other boards; True if there were any."""
        for board, error, info in failures:
            board.end(error, info)
        for board, _, _ in failures:
            self._tell(board)
        return bool(failures)

    def _cabled(self, board: RingBoard) -> list[RingBoard]:
        """The boards at the other ends of port 0 and port 1."""
        place = self.boards.index(board)
        return [self.boards[place - 1], self.boards[(place + 1) % len(self.boards)]]

    def _neighbours(self, board: RingBoard) -> list[bool]:
        """By port: whether the neighbour has begun the same run."""
        return [
            other is not board
            and other.running
            and other.in_ring
            and other["ring_run"] & 255 == board["ring_run"] & 255
            for other in self._cabled(board)
        ]

    def _refusal(self, board: RingBoard) -> tuple[ErrorCode, int] | None:
        """Error and its information if a neighbour of the board does not fit it."""
        size, place = board["ring_boards"], board["ring_board"]
        heard = self._neighbours(board)
        for port, other in enumerate(self._cabled(board)):
            if not heard[port]:
                continue
            version, order = other["interface_version"], (other["ring_boards"], other["ring_board"])
            if version != board["interface_version"]:
                return ErrorCode.RING_VERSION, port << 31 | version & 0x7FFFFFFF
            if order != (size, (place + (1 if port else size - 1)) % size):
                return ErrorCode.RING_ORDER, port << 31 | (order[0] & 255) << 8 | order[1] & 255
            if any(other[name] != board[name] for name in ("config_digest", "ring_key")):
                return ErrorCode.RING_PROGRAM, port
        return None

    def _tell(self, failed: RingBoard) -> None:
        """ABORT: the run of all other boards ends too; those that have not begun it yet end when they do."""
        code = failed["error"]
        if not failed.in_ring or code in (ErrorCode.NONE, ErrorCode.PEER_FAILED):
            return
        info = (failed["ring_board"] & 7) << 8 | code
        for other in self.boards:
            if other is failed:
                continue
            if not other.running:
                other.abort = (failed["ring_run"] & 255, info)
            elif other.in_ring and other["ring_run"] & 255 == failed["ring_run"] & 255:
                other.end(ErrorCode.PEER_FAILED, info)

    def _work(self) -> None:
        """One position on all boards, by turns: each goes on until it waits for another one."""
        assert self._exchange is not None
        work: dict[int, Waits[None]] = {i: b.step() for i, b in enumerate(self.boards) if b.running}
        waits = {i: "has ended its run" for i in range(len(self.boards)) if i not in work}
        while work:
            before = self._exchange.events
            for place in list(work):
                try:
                    waits[place] = next(work[place])
                    continue
                except StopIteration:
                    del work[place]
                    waits[place] = "has completed the position"
                    before = -1
                except BoardError as error:
                    raise type(error)(f"board {place}: {error}") from None
                if self.boards[place]["error"] == ErrorCode.ILLEGAL:
                    self._tell(self.boards[place])
                    return
            if self._exchange.events == before:
                states = "; ".join(f"board {place}: {wait}" for place, wait in sorted(waits.items()))
                raise BoardError(f"the boards wait for each other for ever: {states}")


class RingBoard(FunctionalBoard):
    """One board of a :class:`FunctionalRing`; registers can be read and written by name.

    Members
    -------
    ``waited`` : cycles that it has waited for its neighbours. ``abort`` : run number and ``error_info`` of an ABORT
    that came while it was idle.
    """

    def __init__(self, ring: FunctionalRing, config: CoreConfig | None, version: int) -> None:
        super().__init__(config, interface_version=version)
        self._ring = ring
        self.waited = 0
        self.abort: tuple[int, int] | None = None

    def load(self, program: Program, image: MemoryImage) -> None:
        """See BoardModel."""
        super().load(program, image)
        self["link_status"] = _UP if len(self._ring.boards) > 1 else 0

    def advance(self, max_cycles: int) -> int:
        """Let the whole ring work on one position. Returns 0: there are no cycles here."""
        self._loaded()
        self._ring.advance(max_cycles)
        return 0

    def end(self, error: ErrorCode, info: int = 0) -> None:
        """End the run."""
        super().end(error, info)
        self["link_status"] &= ~_JOINED

    def __getitem__(self, name: str) -> int:
        return self._registers[name]

    def __setitem__(self, name: str, value: int) -> None:
        self._registers[name] = value

    @property
    def config(self) -> CoreConfig:
        """Core of the loaded program."""
        return self._config

    @property
    def in_ring(self) -> bool:
        """Whether its registers say that there are other boards."""
        return self["ring_boards"] > 1

    def taken_abort(self) -> tuple[ErrorCode, int] | None:
        """Error and its information if another board broke the run off before this one began it."""
        abort, self.abort = self.abort, None
        return (ErrorCode.PEER_FAILED, abort[1]) if abort is not None and abort[0] == self["ring_run"] & 255 else None

    def _start(self) -> None:
        super()._start()
        self.waited = 0
        self._ring.started()
