"""What the boards of a ring exchange in one run: strips, sums and arg-max (docs/ring.md, section 1).

Strips are written to the other boards at once, as early as any link could deliver them. Whether they may come that
early does not depend on the order in which this process happens to run the boards: every board carries a vector clock
(one count of completed instructions a board), so a strip that could overtake the last access to its old contents on
some board is found whatever the order was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BoardError
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Instruction
from hw.numerics.fp32_max import fp32_less

__all__ = ["Best", "BoardExchange", "RingExchange", "Sums", "Waits"]

_T = TypeVar("_T")
Waits = Generator[str, None, _T]
"""A computation that yields what it waits for as long as another board has to do something first."""

_ORDER = "the order of gathers is illegal (docs/ring.md, section 3); see hw.gpt2.legality.check_program"


@dataclasses.dataclass
class Best:
    """Best logit of one board or of all: ``token`` is a token id, ``value`` an fp32 bit pattern."""

    token: int = 0
    nan: bool = False
    found: bool = False
    value: int = 0

    def take(self, other: Best) -> None:
        """Keep the larger value, of equal ones the lower token id; -0 counts as +0. NaN seen anywhere stays."""
        self.nan |= other.nan
        if not other.found:
            return
        if self.found and fp32_less(other.value, self.value):
            return
        if not self.found or fp32_less(self.value, other.value) or other.token < self.token:
            self.found, self.value, self.token = True, other.value, other.token


class Sums:
    """One exchange of exact sums (units of 2^-24 and 2^-48) or of bests: what each board contributed, and its clock."""

    def __init__(self, boards: int) -> None:
        self._parts: list[tuple[int, int, bool] | Best | None] = [None] * boards
        self._clock = np.zeros(boards, np.int64)

    def contribute(self, board: int, part: tuple[int, int, bool] | Best, clock: NDArray[np.int64]) -> None:
        """Take a board's part, which it knew at ``clock``."""
        self._parts[board] = part
        np.maximum(self._clock, clock, out=self._clock)

    def missing(self) -> list[int]:
        """Boards that have not contributed."""
        return [board for board, part in enumerate(self._parts) if part is None]

    def clock(self) -> NDArray[np.int64]:
        """What a board knows that has all parts."""
        return self._clock

    def total(self) -> tuple[int, int, bool]:
        """Sum of x, sum of x^2, NaN seen; of all boards."""
        parts = [part for part in self._parts if isinstance(part, tuple)]
        return sum(p[0] for p in parts), sum(p[1] for p in parts), any(p[2] for p in parts)

    def best(self) -> Best:
        """The best logit of all boards."""
        best = Best()
        for part in self._parts:
            if isinstance(part, Best):
                best.take(part)
        return best


class RingExchange:
    """One run of several boards: ``sides`` are the boards' views, in their order in the ring."""

    def __init__(self, boards: int, config: CoreConfig) -> None:
        self.config = config
        self.sides = [BoardExchange(self, board, boards) for board in range(boards)]
        self.events = 0  # instructions begun, strips sent, parts contributed: standing still means that nothing moved


class BoardExchange:
    """What the core of one board sees of the others.

    Members
    -------
    ``strips`` : uint16 array (strip addresses, lanes), the board's memory of strips, given by the core.

    Every instruction of the core calls :meth:`begin` first, then what it does in order. Methods that may have to wait
    are generators. All raise BoardError for an order of gathers that docs/ring.md forbids.
    """

    def __init__(self, ring: RingExchange, board: int, boards: int) -> None:
        size = ring.config.new_key_base
        self._ring, self._board = ring, board
        self.strips: NDArray[np.uint16] = np.zeros((0, 0), np.uint16)
        self._time = 0
        self._clock = np.zeros(boards, np.int64)
        self._balance = np.zeros(size, np.int8)  # strips that came less those announced: -1 awaited, 1 came early
        self._own = np.zeros(size, np.bool_)  # announced as this board's
        self._last_access = np.zeros(size, np.int64)
        self._strip_clock = np.zeros((size, boards), np.int64)  # what the strip's sender knew
        self._sums: list[Sums] = []  # exchanges that this board has begun and another one has not
        self._bests: list[Sums] = []

    def begin(self) -> None:
        """One more instruction; all before it count as completed."""
        self._clock[self._board] = self._time
        self._time += 1
        self._ring.events += 1

    def gather(self, vector: Instruction) -> None:
        """GATHER: the strips of other boards are awaited from here on."""
        strips = np.arange(vector.dst, vector.dst + vector.strips)
        if strips.size == 0 or strips[-1] >= self._balance.size:
            raise BoardError(
                f"vector of strips {vector.dst} to {vector.dst + vector.strips - 1} is no activation memory"
            )
        own = (strips >= vector.dst + vector.src) & (strips < vector.dst + vector.src + vector.words)
        self._own[strips] = own
        others = strips[~own]
        if (self._balance[others] < 0).any():
            raise BoardError(f"strips {vector.dst} and on are announced again before they came; {_ORDER}")
        self._balance[others] -= 1

    def access(self, strips: range) -> Waits[None]:
        """Read or overwrite strips: waits for those that are awaited from other boards."""
        at = slice(strips.start, min(strips.stop, self._balance.size))
        if at.start >= at.stop:  # nothing, or new keys and values
            return
        if self._balance[at].any():
            yield from self._await(at)
        if (early := np.flatnonzero(self._balance[at])).size:
            strip = at.start + int(early[0])
            raise BoardError(
                f"strip {strip} was overwritten by another board before its old content was read; {_ORDER}"
            )
        self._learn(self._strip_clock[at].max(axis=0))
        self._last_access[at] = self._time

    def send(self, strips: range) -> None:
        """Send result strips, which stand in ``strips`` memory, to all other boards."""
        if not (strips.stop <= self._own.size and self._own[strips.start : strips.stop].all()):
            raise BoardError(
                f"sends strips {strips.start} to {strips.stop - 1}, not all announced as its own by a GATHER"
            )
        at = slice(strips.start, strips.stop)
        for other in self._ring.sides:
            if other is not self:
                other._arrive(at, self)
        self._ring.events += 1

    def contribute(self, sums: tuple[int, int, bool]) -> Sums:
        """Add this board's sums to the exchange of the same number on all boards; see :meth:`totals`."""
        return self._contribute(sums, [side._sums for side in self._ring.sides])

    def totals(self, sums: Sums) -> Waits[tuple[int, int, bool]]:
        """The sums of all boards."""
        yield from self._complete(sums, "sums")
        return sums.total()

    def decide(self, best: Best) -> Waits[Best]:
        """The best logit of all boards, given this board's."""
        step = self._contribute(best, [side._bests for side in self._ring.sides])
        yield from self._complete(step, "best logits")
        return step.best()

    def end_step(self) -> Waits[None]:
        """NEXT: every announced strip has come, so nothing of this step can overwrite what the next one writes."""
        yield from self._await(slice(0, self._balance.size))
        self._learn(self._strip_clock[self._balance == 0].max(axis=0, initial=0))  # not from what came early

    def _await(self, at: slice) -> Waits[None]:
        while (self._balance[at] < 0).any():
            missing = at.start + np.flatnonzero(self._balance[at] < 0)
            yield f"strips {missing[0]} to {missing[-1]} of other boards"

    def _complete(self, part: Sums, what: str) -> Waits[None]:
        while missing := part.missing():
            yield f"{what} of board{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        self._learn(part.clock())

    def _contribute(self, part: tuple[int, int, bool] | Best, queues: list[list[Sums]]) -> Sums:
        """Exchanges are numbered by each board for itself; a queue holds those that its board has not come to."""
        if not queues[self._board]:
            begun = Sums(len(queues))
            for queue in queues:
                queue.append(begun)
        exchange = queues[self._board].pop(0)
        clock = self._clock.copy()
        clock[self._board] = self._time
        exchange.contribute(self._board, part, clock)
        self._ring.events += 1
        return exchange

    def _learn(self, clock: NDArray[np.int64]) -> None:
        self._clock = np.maximum(self._clock, clock)

    def _arrive(self, at: slice, sender: BoardExchange) -> None:
        """Write strips of another board. The last one tells that its instruction has read all its operands."""
        if (self._balance[at] > 0).any():
            raise BoardError(
                f"sends strips {at.start} and on again before board {self._board} announced them; {_ORDER}"
            )
        if sender._clock[self._board] < self._last_access[at].max(initial=0):
            strip = at.start + int(np.argmax(self._last_access[at]))
            raise BoardError(
                f"sends strip {strip}, whose old content board {self._board} may still have to read; {_ORDER}"
            )
        self.strips[at] = sender.strips[at]
        self._balance[at] += 1
        self._strip_clock[at] = sender._clock
        self._strip_clock[at.stop - 1, sender._board] = sender._time
