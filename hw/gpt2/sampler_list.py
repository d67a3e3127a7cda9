"""The largest of a stream of ranks, kept in order."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["ID_BITS", "RANK_BITS", "LargestList", "rank_id", "rank_key", "rank_of"]

ID_BITS = 20
RANK_BITS = 32 + ID_BITS


def rank_of(key: Value, token: Value) -> Value:
    """A number that orders logits, equal ones by lower token: ``key`` (``hw.numerics.fp32_max``) over the inverted id.

    It is never 0, since a key is not.
    """
    return Cat(~Cat(token, Const(0, ID_BITS))[:ID_BITS], key)


def rank_key(rank: Value) -> Value:
    """The logit's key of a rank."""
    return rank[ID_BITS:]


def rank_id(rank: Value) -> Value:
    """The token of a rank."""
    return ~rank[:ID_BITS]


class LargestList(wiring.Component):
    """The ``size`` largest ranks since ``clear``, the largest first.

    Blocks of cells: a rank that comes to a block takes its place in it, what lies behind moves on by a cell, and the
    last one goes on to the next block in the next cycle. An empty cell holds 0.

    Parameters
    ----------
    size, block : int
        Cells, and cells of a block (those that one register drives); a block's divide all.

    Members
    -------
    ``clear`` : forgets everything; ``insert``, ``rank`` : a rank above 0, all of them different.
    ``shift`` : the largest is taken away; not before ``settle`` cycles after the last ``insert``.
    ``first`` : the largest, 0 if there is none; valid ``settle`` cycles after the last ``insert``.
    ``last`` : at any time, what is not above this is not among the ``size`` largest; 0 while cells are empty.

    Timing: one rank a cycle.
    """

    def __init__(self, size: int = 64, block: int = 8):
        if not 1 <= block <= size or size % block:
            raise ValueError(f"cells of a block must divide those of the list ({size}), got {block!r}")
        self.size = size
        self.block = block
        super().__init__(
            {
                "clear": In(1),
                "insert": In(1),
                "rank": In(RANK_BITS),
                "shift": In(1),
                "first": Out(RANK_BITS),
                "last": Out(RANK_BITS),
            }
        )

    @property
    def settle(self) -> int:
        """Cycles from an ``insert`` to its effect in the last cell."""
        return self.size // self.block

    def elaborate(self, platform):
        m = Module()
        held = [Signal(RANK_BITS, name=f"held_{i}", reset_less=True) for i in range(self.size)]
        coming = Signal(RANK_BITS)
        m.d.comb += coming.eq(Mux(self.insert, self.rank, 0))
        for start in range(0, self.size, self.block):
            cells = held[start : start + self.block]
            above = [Signal(name=f"above_{start + i}") for i in range(self.block)]  # the rank that comes is larger
            for i, cell in enumerate(cells):
                behind = held[start + i + 1] if start + i + 1 < self.size else 0
                m.d.comb += above[i].eq(coming > cell)
                with m.If(self.clear):
                    m.d.sync += cell.eq(0)
                with m.Elif(self.shift):
                    m.d.sync += cell.eq(behind)
                with m.Elif(above[i]):
                    m.d.sync += cell.eq(Mux(above[i - 1], cells[i - 1], coming) if i else coming)
            leaving = Signal(RANK_BITS, name=f"leaving_{start}", reset_less=True)
            m.d.sync += leaving.eq(Mux(self.clear, 0, Mux(above[-1], cells[-1], coming)))
            coming = leaving
        m.d.comb += [self.first.eq(held[0]), self.last.eq(held[-1])]
        return m
