"""Queue of results between the accumulators and the drain unit, where a tile may have two (docs/int8.md, section 3)."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit
from hw.gpt2.tags import Destination, Operation, tag_layout

__all__ = ["RESULT_QUEUE", "ResultQueue"]

RESULT_QUEUE = 128
"""Entries, a tile each: all that can be on the way from issue, and the backlog of a group of open strips."""


class ResultQueue(wiring.Component):
    """Tags of results that wait; the lanes keep the values at the same places.

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``tag`` : the tag at ``Stages.total``; if it has a destination, an entry is made of it at the end of the cycle. The
        issue unit must see to it that there is room.
    ``write_at`` : place of that entry.
    ``out`` : tag of the result that leaves in this cycle, the even one first; one without destination if none does.
    ``read_at``, ``odd`` : its place, and which of the two.
    ``freed`` : strobe, the last result of an entry leaves.

    Timing: an entry's first result can leave in the cycle after it was made; one result a cycle.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        super().__init__(
            {
                "tag": In(tag_layout(config)),
                "write_at": Out(range(RESULT_QUEUE)),
                "out": Out(tag_layout(config)),
                "read_at": Out(range(RESULT_QUEUE)),
                "odd": Out(1),
                "freed": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        layout = tag_layout(self.config)
        m.submodules.tags = tags = Memory(shape=layout.size, depth=RESULT_QUEUE, init=[])
        write, read = tags.write_port(), tags.read_port(domain="comb")
        made, some = Signal(), Signal()
        entry = data.View(layout, read.data)
        out = Signal(layout)
        m.d.comb += [
            made.eq(self.tag.destination != Destination.NONE),
            write.en.eq(made),
            write.addr.eq(self.write_at),
            write.data.eq(self.tag.as_value()),
            read.addr.eq(self.read_at),
            some.eq(self.write_at != self.read_at),
            out.eq(entry),
            self.freed.eq(some & (self.odd | ~entry.two)),
            self.out.eq(out),
        ]
        m.d.sync += self.write_at.eq(self.write_at + made)
        with m.If(some):
            m.d.sync += [self.odd.eq(entry.two & ~self.odd), self.read_at.eq(self.read_at + self.freed)]
        with m.Else():
            m.d.comb += [out.operation.eq(Operation.NONE), out.destination.eq(Destination.NONE)]
        with m.If(self.odd):
            m.d.comb += [out.dst.eq(entry.dst + 1), out.index.eq(entry.index + 1), out.strip_first.eq(0)]
            m.d.comb += [out.mask[r].eq(entry.mask_odd) for r in range(self.config.rows)]
        with m.Elif(entry.two):
            m.d.comb += [out.strip_last.eq(0), out.flush.eq(0), out.commit.eq(Commit.NONE.value)]
        return m
