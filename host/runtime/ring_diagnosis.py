"""How the boards of a ring ended their runs, and what was the cause: its board, its port, the cable's other end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from host.driver.kernel_registers import KernelRegisters
from host.driver.state_words import PORT_WORDS, awaited_words, error_words
from host.driver.xclbin_info import version_text
from host.errors import HostError, KernelFault, RingFault
from host.runtime.ring_programs import strip_owner
from hw.board.gpt2_map import ErrorCode
from hw.board.program import Program

__all__ = ["RunEnd", "diagnose", "failed"]

# Which error is the cause if boards have several, first to last. A board's own fault takes others down with it, a
# wrong neighbour shows before any work, a dead cable starves boards behind it.
_CAUSES = (
    (ErrorCode.ILLEGAL, ErrorCode.READ, ErrorCode.WRITE, ErrorCode.START, ErrorCode.NAN_LOGITS),
    (ErrorCode.RING_VERSION,),
    (ErrorCode.RING_ORDER,),
    (ErrorCode.RING_PROGRAM,),
    (ErrorCode.LINK_DOWN,),
    (ErrorCode.NO_HELLO,),
    (ErrorCode.PEER_SILENT,),
)
_CABLES = "Check the cables: port 1 (right) of a board goes to port 0 (left) of the next, that of the last to board 0."


@dataclasses.dataclass(frozen=True)
class RunEnd:
    """Registers ``error`` and ``error_info`` of a board whose run has ended."""

    error: int
    info: int = 0

    @classmethod
    def of(cls, kernel: KernelRegisters) -> RunEnd:
        """How the last run of a kernel ended.

        A neighbour that was not heard because the cable is dead (NO_HELLO) counts as LINK_DOWN.
        """
        error, info, dead = kernel.get("error"), kernel.get("error_info"), kernel.get("link_status") >> 2 & 3
        if error == ErrorCode.NO_HELLO and info & dead:
            return cls(ErrorCode.LINK_DOWN, int(not info & dead & 1))
        return cls(error, info)

    @property
    def root(self) -> tuple[int, int]:
        """(board, error) that a PEER_FAILED tells of."""
        return self.info >> 8, self.info & 0xFF

    @property
    def name(self) -> str:
        """The error's name."""
        return ErrorCode(self.error).name if self.error in set(ErrorCode) else f"error {self.error}"


def failed(end: RunEnd) -> bool:
    """Whether this end has to be explained: it is neither a good one nor that of a run that the host cancelled."""
    echo = end.error == ErrorCode.PEER_FAILED and end.root[1] == ErrorCode.CANCELLED
    return not echo and end.error not in (ErrorCode.NONE, ErrorCode.CANCELLED)


def diagnose(ends: Sequence[RunEnd | None], names: Sequence[str], programs: Sequence[Program]) -> HostError:
    """The error to raise for a run that failed on at least one board.

    Parameters
    ----------
    ends : how each board ended, None for one that had not ended when waiting was given up.
    names : what to call each board, such as ``board 2 (sim-u280-2)``.
    programs : what the boards run, which says who computes a strip.
    """
    found = _Boards(ends, names, programs)
    for group in _CAUSES:
        boards = [board for board, end in enumerate(ends) if end is not None and end.error in group]
        if boards:
            return found.describe(boards)
    echoes = [board for board, end in enumerate(ends) if end is not None and failed(end)]
    return found.echo(echoes) if echoes else found.not_ended()


class _Boards:
    """Names and neighbours, for one diagnosis."""

    def __init__(self, ends: Sequence[RunEnd | None], names: Sequence[str], programs: Sequence[Program]) -> None:
        self.ends, self.names, self.programs = ends, names, programs
        self.count = len(ends)

    def describe(self, boards: Sequence[int]) -> HostError:
        """The error of these boards, which all have one cause, told by the first where they do not differ."""
        end = self._end(boards[0])
        match end.error:
            case ErrorCode.LINK_DOWN:
                return self._link_down(boards)
            case ErrorCode.NO_HELLO:
                return self._no_hello(boards)
            case ErrorCode.RING_VERSION | ErrorCode.RING_ORDER | ErrorCode.RING_PROGRAM:
                return self._wrong_neighbour(boards)
            case ErrorCode.PEER_SILENT:
                return self._silent(boards)
        what = error_words(end.error, end.info)
        where = "" if self.count == 1 else f" on {self._named(boards)}"
        value = {"error": end.error, "error_info": end.info, **({} if self.count == 1 else {"board": boards[0]})}
        return KernelFault(f"the kernel ended the run{where}: {what}", value=value)

    def echo(self, boards: Sequence[int]) -> HostError:
        """Boards say that another one failed, and that one says nothing of it."""
        end = self._end(boards[0])
        if end.error != ErrorCode.PEER_FAILED:
            return self.describe(boards)
        origin, code = end.root
        says = RunEnd(code).name
        theirs = self.ends[origin] if origin < self.count else None
        itself = "has not ended its run" if theirs is None else f"itself ended with {theirs.name}"
        name = self.names[origin] if origin < self.count else f"board {origin}, which does not exist,"
        return RingFault(
            f"{self._named(boards)} ended the run because {name} failed with {says}; it {itself}",
            kind="peer_failed",
            value=self._value(boards[0], None, origin),
            hint="Run it again; if it happens again, load the xclbin of that board again.",
        )

    def not_ended(self) -> HostError:
        """Boards did not end the run, and no board says why."""
        boards = [board for board, end in enumerate(self.ends) if end is None]
        return RingFault(
            f"{self._named(boards)} did not end the run, not even when cancelled",
            kind="not_ended",
            value={"boards": boards},
            hint="Load the xclbin again.",
        )

    def _link_down(self, boards: Sequence[int]) -> RingFault:
        first, port = boards[0], self._end(boards[0]).info & 1
        cables = sorted({self._cable(board, self._end(board).info & 1) for board in boards})
        ends = [f"the cable between {self._port(b, 1)} and {self._port(self._peer(b, 1), 0)}" for b in cables]
        hint = "Check that it is plugged in at both ends and that both boards are powered and hold their kernel."
        suspect = self._between(boards)
        tail = ""
        if suspect is not None:
            tail = f"; both lead to {self.names[suspect]}, which reports nothing: it seems to have stopped"
            hint = f"Look at {self.names[suspect]} first: load its xclbin again, then check its cables."
        return RingFault(
            f"{' and '.join(ends)} {'is' if len(ends) == 1 else 'are'} dead, as {self._named(boards)} "
            f"report{'s' if len(boards) == 1 else ''}{tail}",
            kind="link_down",
            value=self._value(first, port, self._peer(first, port)),
            hint=hint,
        )

    def _no_hello(self, boards: Sequence[int]) -> RingFault:
        waited = [(board, port) for board in boards for port in (0, 1) if self._end(board).info >> port & 1]
        first, port = waited[0] if waited else (boards[0], None)
        silent = self._named(sorted({self._peer(b, p) for b, p in waited}) or [first])
        parts = [f"{self._port(b, p)} has heard nothing of this run from {self._far(b, p)}" for b, p in waited]
        return RingFault(
            "; ".join(parts) or f"{self._named(boards)} waited in vain for its neighbours",
            kind="no_hello",
            value=self._value(first, port, None if port is None else self._peer(first, port)),
            hint=f"Check that {silent} took the start of this run. {_CABLES}",
        )

    def _wrong_neighbour(self, boards: Sequence[int]) -> RingFault:
        parts = []
        for board in boards:
            end = self._end(board)
            port = self._error_port(end)
            here, expected = self._port(board, port), self._far(board, port)
            if end.error == ErrorCode.RING_VERSION:
                theirs = version_text(end.info & 0x7FFF_FFFF)
                parts.append(f"at {here} answers interface version {theirs}, expected that of {expected}, its own")
            elif end.error == ErrorCode.RING_ORDER:
                count, place = end.info >> 8 & 0xFF, end.info & 0xFF
                if (place, count) == (self._peer(board, port), self.count):
                    parts.append(f"{self.names[board]} does not expect {expected}: its own place is set to another one")
                else:
                    parts.append(f"at {here} answers board {place} of {count}, expected {expected} of {self.count}")
            else:
                parts.append(f"at {here} {expected} has another core or a program of another plan")
        first = self._end(boards[0])
        port = self._error_port(first)
        hints = {
            ErrorCode.RING_VERSION: "Load the same xclbin on all boards.",
            ErrorCode.RING_ORDER: _CABLES,
            ErrorCode.RING_PROGRAM: "Load the xclbin and the programs of one plan on all boards.",
        }
        return RingFault(
            "; ".join(parts),
            kind=first.name.lower(),
            value=self._value(boards[0], port, self._peer(boards[0], port)),
            hint=hints[ErrorCode(first.error)],
        )

    def _silent(self, boards: Sequence[int]) -> RingFault:
        parts, owners = [], []
        for board in boards:
            info = self._end(board).info
            strip, mask = info >> 8, info & 0xFF
            owner = strip_owner(self.programs, strip - 1) if strip else None
            silent = [owner] if owner is not None else [b for b in range(self.count) if mask >> b & 1]
            owners += silent
            made_by = f", which {self.names[owner]} computes" if owner is not None else ""
            parts.append(f"{self.names[board]} waited in vain for {awaited_words(info)}{made_by}")
        owner = owners[0] if owners else None
        look = "" if owner is None else f"Look at {self.names[owner]} and the boards on the way to it; "
        return RingFault(
            "; ".join(parts),
            kind="peer_silent",
            value=self._value(boards[0], None, owner),
            hint=f"{look}a larger link limit only helps where boards have very unequal work.",
        )

    def _end(self, board: int) -> RunEnd:
        end = self.ends[board]
        if end is None:
            raise ValueError(f"board {board} has not ended")
        return end

    @staticmethod
    def _error_port(end: RunEnd) -> int:
        return end.info & 1 if end.error == ErrorCode.RING_PROGRAM else end.info >> 31 & 1

    def _peer(self, board: int, port: int) -> int:
        return (board + (1 if port else -1)) % self.count

    def _cable(self, board: int, port: int) -> int:
        """A cable by the board at whose right port it begins."""
        return board if port else self._peer(board, 0)

    def _port(self, board: int, port: int) -> str:
        return f"{self.names[board]} port {port} ({PORT_WORDS[port]})"

    def _far(self, board: int, port: int) -> str:
        """The cable's other end."""
        return self._port(self._peer(board, port), 1 - port)

    def _between(self, boards: Sequence[int]) -> int | None:
        """The board to which the dead cables of two boards lead, if it reports none itself."""
        led = [self._peer(board, self._end(board).info & 1) for board in boards]
        return led[0] if len(led) == 2 and led[0] == led[1] and led[0] not in boards else None

    def _named(self, boards: Sequence[int]) -> str:
        *most, last = [self.names[board] for board in boards]
        return f"{', '.join(most)} and {last}" if most else last

    def _value(self, board: int, port: int | None, peer: int | None) -> dict[str, object]:
        end = self._end(board)
        return {
            "board": board,
            "port": port,
            "peer": peer,
            "error": end.error,
            "error_info": end.info,
            "ends": [None if each is None else each.name for each in self.ends],
        }
