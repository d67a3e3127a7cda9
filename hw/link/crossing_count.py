"""A count that one clock domain keeps and another one reads."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

__all__ = ["CrossingCount"]


class CrossingCount(wiring.Component):
    """Counts strobes and shows the count, modulo 2^bits, in another domain.

    It is what stands between the two sides of a FIFO, without the memory: the memories of a port keep their frames
    until they are acknowledged, which no FIFO does.

    Parameters
    ----------
    bits : int
        Bits of the count, at least 2.
    counts, shows : str
        The two clock domains.

    Members
    -------
    ``increment`` : strobe. ``count`` : register in domain ``counts``. ``seen`` : in domain ``shows``, from registers
        through one exclusive or.

    Timing: the count goes through a Gray code and two flip-flops: ``seen`` follows the second edge of ``shows`` behind
    the edge that changed ``count``. A reset of ``counts`` clears the count; ``shows`` must be in reset until it has
    seen that.
    """

    def __init__(self, bits: int, *, counts: str, shows: str):
        if bits < 2:
            raise ValueError(f"bits must be at least 2, got {bits!r}")
        self.counts, self.shows = counts, shows
        super().__init__({"increment": In(1), "count": Out(bits), "seen": Out(bits)})

    def elaborate(self, platform):
        m = Module()
        following = Signal.like(self.count)
        code, seen_code = Signal.like(self.count), Signal.like(self.count)
        m.d.comb += following.eq(self.count + self.increment)
        m.d[self.counts] += [self.count.eq(following), code.eq(following ^ (following >> 1))]
        m.submodules.crossing = FFSynchronizer(code, seen_code, o_domain=self.shows)
        m.d.comb += [self.seen[i].eq(seen_code[i:].xor()) for i in range(len(self.seen))]
        return m
